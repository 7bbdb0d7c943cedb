"""Two custom rewards: partial credit for digits, and a program that must pass tests in the sandbox."""

from rocstar.sandbox.types import ExecRequest, Limits, Sandbox, Status
from rocstar.train.tasks.own_reward import Attempt, Reward
from rocstar.train.tasks.verify import extract_answer


def digits(attempt: Attempt, *, partial: float = 0.5) -> Reward:
    """Return 1 for the right answer, and up to `partial` for the share of its digits that are right."""
    answer = extract_answer(attempt.final_text).answer
    truth = attempt.task.answer
    if attempt.is_truncated or answer is None:
        return Reward(value=0.0, is_correct=False, method="no_answer")
    if answer == truth:
        return Reward(value=1.0, is_correct=True, method="exact")
    right = sum(a == b for a, b in zip(reversed(answer), reversed(truth), strict=False))
    share = right / max(len(answer), len(truth))
    return Reward(value=partial * share, is_correct=False, method="digits")


async def program(attempt: Attempt, *, sandbox: Sandbox, wall_s: float = 2.0) -> bool:
    """Return True if the program of the last tool call, run again, succeeds and prints the answer."""
    calls = [call for turn in attempt.turns for call in turn.calls if call.arguments]
    if not calls:
        return False
    code = str(dict(calls[-1].arguments or {}).get("code", ""))
    result = await sandbox.run(ExecRequest(code=code, limits=Limits(wall_s=wall_s)))
    return result.status is Status.OK and result.stdout.strip() == attempt.task.answer
