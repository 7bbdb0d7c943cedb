"""Typical grading, run once before forking: every form of answer through math-verify's parser."""

from math_verify import parse, verify

PAIRS = (
    ("42", r"\boxed{42}"),
    (r"\frac{1}{2}", "$0.5$"),
    (r"\dfrac{3}{4}", r"\boxed{\frac{3}{4}}"),
    ("x^2+1", "$1+x^2$"),
    ("(1,2)", "$(1, 2)$"),
    (r"\sqrt{2}", r"$\sqrt{2}$"),
    (r"\{1,2\}", r"$\{2,1\}$"),
    (r"3\pi", r"The answer is $3\pi$"),
    ("x=3", "$x = 3$"),
    ("50%", r"$50\%$"),
    ("1,000", "1000"),
    ("[0, 1)", r"\boxed{[0,1)}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$"),
    ("-7", "so it is \\boxed{7}"),
    ("12.5", "no answer here"),
)

for gold, answer in PAIRS:
    verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
