"""The answer in a text: the boxed value of the last complete `<answer>` block of the spoken text. Pure.

    the policy's last turn ──spoken text──> last <answer>...</answer> ──> last \\boxed{...}

The input is only text of the policy: tool output could supply an answer, and so could a program sent to a
tool; an answer within a thought is a draft. Several blocks are not a failure here: they cost the format
penalty (`num_answers`), as in the paper. Source: arXiv 2508.20722, 2.1 and 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rocstar.engine.chat.toolcalls import spoken_text
from rocstar.engine.types import Turn
from rocstar.train.tasks.latex import last_boxed

OPEN_TAG = "<answer>"
CLOSE_TAG = "</answer>"


class Extraction(NamedTuple):
    """`answer` is the content of the box, stripped; without one it is None, and `failure` is the reason."""

    answer: str | None
    failure: Literal["", "no_answer", "no_box"] = ""


def num_answers(written: str | Sequence[Turn]) -> int:
    """Return the number of answer blocks, for RoC's p_format (Eq. 5): 0 if no block is complete, else the
    larger count of opening and closing tags, so that a stray tag counts as a further answer.
    """
    text = spoken_text(written)
    start = text.find(OPEN_TAG)
    if start < 0 or text.find(CLOSE_TAG, start) < 0:
        return 0
    return max(text.count(OPEN_TAG, start), text.count(CLOSE_TAG))


def extract_answer(final: str | Sequence[Turn]) -> Extraction:
    """Return the content of the last `\\boxed{...}` in the last complete `<answer>...</answer>` of the text,
    or of the last turn.
    """
    text = spoken_text(final if isinstance(final, str) else final[-1:])
    opened = text.rfind(OPEN_TAG, 0, max(0, text.rfind(CLOSE_TAG)))
    if opened < 0:
        return Extraction(None, "no_answer")
    boxed = last_boxed(text[opened + len(OPEN_TAG) : text.find(CLOSE_TAG, opened)])
    if boxed is None:
        return Extraction(None, "no_box")
    return Extraction(boxed.strip())
