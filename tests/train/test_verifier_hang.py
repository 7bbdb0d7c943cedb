"""An answer that makes the real grader hang: no reward, a counted failure, and its siblings go on."""

from rocstar.engine.chat import ChatFormat, load_template
from rocstar.engine.group import run_group
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.testing import ByteTokenizer, Request, ScriptedPolicy
from rocstar.engine.tools import PYTHON_SCHEMA, PythonToolBox
from rocstar.engine.types import Failed, Scored, Task
from rocstar.sandbox.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Status
from rocstar.train.config import RlConfig
from rocstar.train.metrics import check_names
from rocstar.train.reward import VERIFIER_FLAVOUR, Judge
from rocstar.train.selection import select
from rocstar.train.step_metrics import rollout_metrics

TASK = Task(id="t", source="s", question="q", answer="\\sqrt{2}^x")
ANSWERS = ("9^{9^{9^{9^9}}} + x - 1/7", "\\sqrt{2}^x", "\\sqrt{3}^{x}", "2^{x/2}")
WALL_S = 3.0


class Watched:
    """The pool, and what it was asked and answered."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool = pool
        self.seen: list[tuple[ExecRequest, ExecResult]] = []

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        result = await self.pool.run(request, deadline=deadline)
        self.seen.append((request, result))
        return result


async def test_a_real_hang_is_a_counted_verifier_timeout_and_no_reward() -> None:
    def script(request: Request) -> str:
        return f"<answer>\\boxed{{{ANSWERS[request.sibling]}}}</answer>"

    tokenizer = ByteTokenizer()
    async with SandboxPool((VERIFIER_FLAVOUR,)) as pool:
        watched = Watched(pool)
        agent = Agent(
            inference=ScriptedPolicy(script, tokenizer),
            chat=ChatFormat(tokenizer, load_template("compact", None), [PYTHON_SCHEMA]),
            tools=PythonToolBox(
                sandbox=watched, limits=Limits(), flavour="stdlib", style="brief", max_parallel_calls=1
            ),
            judge=Judge(watched, wall_s=WALL_S),
            limits=RolloutLimits(max_response_tokens=500, max_turns=2, max_tool_tokens=64, timeout_s=120.0),
            sampling=Sampling(),
        )
        group = await run_group(agent, TASK, size=4, seed=0, step=1)
    hung, *others = group.trajectories
    assert isinstance(hung.outcome, Failed)
    assert (hung.outcome.kind, hung.outcome.retryable) == ("verifier_timeout", False)
    assert [t.outcome for t in others] == [
        Scored(reward=1.0, method="exact"),
        Scored(reward=0.0, method="math_verify"),
        Scored(reward=1.0, method="math_verify"),
    ]
    assert {request.flavour for request, _ in watched.seen} == {VERIFIER_FLAVOUR}
    assert {request.limits.wall_s for request, _ in watched.seen} == {WALL_S}
    (killed,) = [result for _, result in watched.seen if result.status is not Status.OK]
    assert (killed.status, killed.signal) == (Status.TIMEOUT, 9), "killed from outside, not persuaded"
    metrics = rollout_metrics(
        select([group], RlConfig(rollouts_per_task=4, group_size=2, roc_min_each=1), seed=0, step=1)
    )
    check_names(metrics)
    assert metrics["failed/verifier_timeout"] == metrics["ledger/failed"] == 1
    assert metrics["reward/mean"] == 2 / 3, "over those that have a reward"
