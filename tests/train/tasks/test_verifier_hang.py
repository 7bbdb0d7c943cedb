"""An answer that makes the real grader hang: wrong, within its clock, and its siblings go on."""

import asyncio

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_SCHEMA, PythonTool
from rocstar.engine.types import Failed, Scored, Task
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, Status
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import select
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.record.metrics import check_names
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR, MathJudge
from tests.fakes.scripted_policy import ByteTokenizer, Request, ScriptedPolicy

from ...patience import PATIENCE_S

TASK = Task(id="t", source="s", question="q", answer="\\sqrt{2}^x")
ANSWERS = ("x^{9999999999} + 9^{9999999999}", "\\sqrt{2}^x", "\\sqrt{3}^{x}", "2^{x/2}")
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


async def test_a_real_hang_is_a_wrong_answer() -> None:
    def script(request: Request) -> str:
        return f"<answer>\\boxed{{{ANSWERS[request.sibling]}}}</answer>"

    tokenizer = ByteTokenizer()
    async with SandboxPool((VERIFIER_FLAVOUR,)) as pool:
        watched = Watched(pool)
        agent = Agent(
            inference=ScriptedPolicy(script, tokenizer),
            chat=ChatFormat(tokenizer, load_template("compact", None), [PYTHON_SCHEMA]),
            tools=Dispatcher(
                tools=[PythonTool(limits=Limits(), flavour="stdlib", style="brief")],
                sandbox=watched,
                max_parallel_calls=1,
            ),
            judge=MathJudge(watched, wall_s=WALL_S),
            limits=RolloutLimits(max_response_tokens=500, max_turns=2, max_tool_tokens=64, timeout_s=120.0),
            sampling=Sampling(),
        )
        group = await run_group(agent, TASK, size=4, seed=0, step=1)
        async with asyncio.timeout(PATIENCE_S):
            while any(isinstance(t.outcome, Failed) for t in group.trajectories):  # the grader had no core
                watched.seen.clear()
                group = await run_group(agent, TASK, size=4, seed=0, step=1)
    assert [t.outcome for t in group.trajectories] == [
        Scored(reward=0.0, method="grader_limit"),
        Scored(reward=1.0, method="exact"),
        Scored(reward=0.0, method="symbolic"),
        Scored(reward=1.0, method="symbolic"),
    ]
    assert {request.flavour for request, _ in watched.seen} == {VERIFIER_FLAVOUR}
    assert {request.limits.wall_s for request, _ in watched.seen} == {WALL_S}
    (killed,) = [result for _, result in watched.seen if result.status is not Status.OK]
    assert killed.status is Status.TIMEOUT and killed.signal is not None, "killed from outside, not persuaded"
    metrics = rollout_metrics(
        select([group], RlConfig(rollouts_per_task=4, group_size=2, roc_min_each=1), seed=0, step=1)
    )
    check_names(metrics)
    assert metrics["ledger/failed"] == 0
    assert metrics["reward/mean"] == 2 / 4, "a hang counts as what it is: no right answer"
