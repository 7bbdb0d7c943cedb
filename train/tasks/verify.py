"""The answer in a text: the boxed value of the last complete `<answer>` block of the spoken text. Pure.

    the policy's last turn ──spoken text──> last <answer>...</answer> ──> last \\boxed{...}

The input is only text of the policy: tool output could supply an answer, and so could a program sent to a
tool; an answer within a thought is a draft. Several blocks are not a failure here: they cost the format
penalty (`num_answers`), as in the paper. Source: arXiv 2508.20722, 2.1 and 2.2.
"""

from typing import Literal, NamedTuple

from rocstar.engine.chat.toolcalls import spoken_text
from rocstar.engine.types import Attempt, Trajectory
from rocstar.train.tasks.latex import last_boxed

OPEN_TAG = "<answer>"
CLOSE_TAG = "</answer>"


class Extraction(NamedTuple):
    """`answer` is the content of the box, stripped; without one it is None, and `failure` is the reason."""

    answer: str | None
    failure: Literal["", "no_answer", "no_box"] = ""


def num_answers(attempt: str | Attempt | Trajectory) -> int:
    """Return the number of answer blocks, for RoC's p_format (Eq. 5): 0 if no block is complete, else the
    larger count of opening and closing tags, so that a stray tag counts as a further answer. A foreign agent gives
    one answer by its own convention: 1.
    """
    if not isinstance(attempt, str) and attempt.given is not None:
        return 1
    text = spoken_text(attempt if isinstance(attempt, str) else attempt.turns)
    start = text.find(OPEN_TAG)
    if start < 0 or text.find(CLOSE_TAG, start) < 0:
        return 0
    return max(text.count(OPEN_TAG, start), text.count(CLOSE_TAG))


def extract_answer(final: str | Attempt | Trajectory) -> Extraction:
    """Return the content of the last `\\boxed{...}` in the last complete `<answer>...</answer>` of the text,
    or of the last turn. The answer that a foreign agent gave is the whole text, with or without a box.
    """
    if not isinstance(final, str) and final.given is not None and final.given.answer is not None:
        answer = final.given.answer
        return Extraction((last_boxed(answer) or answer).strip())
    text = spoken_text(final if isinstance(final, str) else final.turns[-1:])
    opened = text.rfind(OPEN_TAG, 0, max(0, text.rfind(CLOSE_TAG)))
    if opened < 0:
        return Extraction(None, "no_answer")
    boxed = last_boxed(text[opened + len(OPEN_TAG) : text.find(CLOSE_TAG, opened)])
    if boxed is None:
        return Extraction(None, "no_box")
    return Extraction(boxed.strip())
