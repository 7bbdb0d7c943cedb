"""The original's verdicts, as they were measured on its released code; and the transcript that it reads."""

import pytest

from rocstar.engine.types import Attempt, Task, ToolResult, Turn
from rocstar.train.tasks.grader_fused import answer_in, first_grader, second_grader
from rocstar.train.tasks.reward import transcript

PRODUCT = "(a+b)(b+c)(c+a)"
CALL = '<tool_call>{"name": "f", "arguments": {"code": "print(x)"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        ("\\boxed{4200}", "42", True),
        ("\\boxed{0.42}", "42", True),
        ("\\boxed{42\\%}", "42", True),
        ("\\boxed{12346}", "12345", True),
        ("\\boxed{100001}", "100000", True),
        ("bla bla 17 and 42", "42", True),
        ("<answer> 42 </answer>", "42", True),
        ("<tool_response>\n\\boxed{42}\n</tool_response> I do not know", "42", True),
        ("<reason> \\boxed{42} and then I go on", "42", True),
        (f"So it is 42.\n{CALL}", "42", True),
        ("\\boxed{84/2}", "42", True),
        ("\\boxed{6\\times7}", "42", True),
        ("\\boxed{x = 42}", "42", True),
        ("\\boxed{042}", "42", True),
        ("\\boxed{42\\text{ cm}}", "42", True),
        ("\\boxed{(a+c)(c+b)(b+a)}", PRODUCT, True),
        ("\\boxed{41} or \\boxed{42}", "41", False),
        ("\\boxed{1, 2, 42}", "42", False),
        ("\\boxed{41}", "42", False),
        ("nothing", "42", False),
    ],
)
def test_the_measured_verdicts(text: str, truth: str, right: bool) -> None:
    assert (first_grader(text, truth) or second_grader(text, truth)) is right


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is \\boxed{\\frac{1}{2}} I think", "\\frac{1}{2}"),
        ("so x = 3", "3"),
        ("41. Answer: 42", "42"),
        ("42 is the answer", "42"),
        ("\\boxed{", "\\boxed{"),
    ],
)
def test_the_first_grader_looks_for_a_closing_phrase(text: str, answer: str) -> None:
    assert answer_in(text) == answer


def test_the_transcript_has_the_tool_output() -> None:
    result = ToolResult(status="ok", is_error=False, text="42")
    turns = (
        Turn(start=0, end=1, text="a", stopped=True, results=(result,)),
        Turn(start=2, end=3, text="b", stopped=True),
    )
    task = Task(id="t", source="s", question="q", answer="42")
    attempt = Attempt(task=task, turns=turns, is_truncated=True)
    assert transcript(attempt) == "a\n<tool_response>\n42\n</tool_response>\nb"
