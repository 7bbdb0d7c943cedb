"""Questions that one answer cannot judge are found by their phrase, and no others."""

import pytest

from rocstar.train.data.problem_kinds import kind_of

OF_A_KIND = {
    "figure": (
        "[asy] draw((0,0)--(1,1)); [/asy] What is the area?",
        "In the diagram, $AB = 3$. Find $BC$.",
        "The graph of $f$ is shown below. What is $f(2)$?",
        "What is the area of the region in the figure at the right?",
        "![](pictures/3.png) How many squares are there?",
        "A square is divided as shown in the accompanying figure. Find its side.",
    ),
    "proof": (
        "Prove that there are infinitely many primes.",
        "Let $n$ be odd. Show that $n^2 - 1$ is divisible by $8$.",
        "Explain why the sum of two even numbers is even.",
    ),
    "multi_part": (
        "A ball falls. (a) Find its speed. (b) How long does it fall?",
        "Let $x > 0$. (i) Determine $f(x)$. (ii) Compute $f(3)$.",
        "Part A: What is $2 + 2$? Part B: What is $3 + 3$?",
        "(1) Find the slope; (2) If the slope doubles, find the intercept.",
    ),
    "choice": (
        "What is $6 \\cdot 7$? (A) 40 (B) 41 (C) 42 (D) 43",
        "$\\textbf{(A)}\\ 2\\ \\textbf{(B)}\\ 3\\ \\textbf{(C)}\\ 4$ What is the third prime less one?",
        "Which of the following is a prime: 4, 6 or 7?",
    ),
    "unanswerable": (
        "Using the result of the previous problem, find $x$.",
        "The cat sat on the mat in the kitchen of the old house.",
    ),
}
PLAIN = (
    "What is $2 + 2$?",
    "Find the number of positive integers $n$ such that (a) $n < 10$ and (b) $n$ is odd.",
    "Find, with proof, the least $n$ with $2^n > n^3$.",
    "A function satisfies (i) $f(1) = 1$; (ii) $f(n+1) = f(n) + 2$. Compute $f(7)$.",
    "The graph of $y = x^2$ meets the line $y = 4$ in two points. How far apart are they?",
    "$\\int_0^1 2x \\, dx$",
    "Rewrite $\\sqrt[3]{27}$ as an integer.",
    "The least positive integer that does not divide $5!$ is:",
    "A picture frame costs $12. How much do three cost?",
    "求三角形的面积。",
    "Points (A), (B) lie on a line. Find the distance.",
)


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in OF_A_KIND.items() for text in texts])
def test_a_kind_is_found_with_its_phrase(kind: str, text: str) -> None:
    found = kind_of(text)
    assert found is not None and found[0] == kind and found[1]
    assert kind_of(text, among=()) is None


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_question_is_left_alone(text: str) -> None:
    assert kind_of(text) is None
