"""The verdicts of the original's graders, `reward.mode = "fused"`: to evaluate its checkpoints, not to train.

    whole transcript, tool output included ──> sandbox: grader_fused.py ──> right if one of two says so

The original grades the complete transcript, truncated or not, and accepts 4200, 0.42 and 42% for 42.
Source: the released code of arXiv 2508.20722, re-made from its description.
"""

from __future__ import annotations

from rocstar.engine.types import GRADER_LIMIT, Attempt, Failed, Outcome, Scored
from rocstar.sandbox.types import Sandbox
from rocstar.train.tasks.grader import Grader, GraderProgram


class FusedJudge:
    """Scores a transcript as the original does; what its graders cannot read or finish is wrong, as there.

    `wall_s` is the original's limit of one grading.
    """

    def __init__(self, sandbox: Sandbox, *, wall_s: float = 4.0) -> None:
        self._grader = Grader(sandbox, wall_s=wall_s)

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Grade the transcript. `deadline` is a `loop.time()`."""
        job = {"text": transcript(attempt), "truth": attempt.task.answer}
        graded = await self._grader.ask(GraderProgram.fused, None, job, count=1, deadline=deadline)
        if isinstance(graded, Failed):
            return graded
        if graded.verdicts is None:
            return Scored(reward=0.0, method=GRADER_LIMIT)
        return Scored(reward=float(graded.verdicts[0]), method="fused")


def transcript(attempt: Attempt) -> str:
    """Return the original's transcript: the policy's turns with the tool results between them."""
    parts = []
    for turn in attempt.turns:
        parts.append(turn.text)
        parts.extend(f"<tool_response>\n{result.text}\n</tool_response>" for result in turn.results)
    return "\n".join(parts)
