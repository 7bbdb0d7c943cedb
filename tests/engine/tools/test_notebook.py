"""The notebook tool over the real sandbox: state over three turns, and every way to lose it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent, run_trajectory
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JUPYTER_TOOL, JupyterTool
from rocstar.engine.types import Scored, Task, ToolCall, Trajectory, TrajectoryKey
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import Limits
from tests.fakes.agents import JUPYTER_SCHEMA, TOKENIZER, make_agent, tool_call
from tests.fakes.scripted_policy import check_trajectory

CHAT = ChatFormat(TOKENIZER, load_template("compact", None), [JUPYTER_SCHEMA])
TASK = Task(id="t", source="s", question="q", answer="42")
KEY = TrajectoryKey(seed=1, step=0, task_id="t", sibling=0)
LIMITS = Limits(wall_s=10.0, memory_bytes=256 << 20)


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(("stdlib",), max_sessions=8) as made:
        yield made


def call(code: str) -> str:
    return tool_call(code, JUPYTER_TOOL)


def agent(sandbox: Any, script: Any, *, style: Any = "plain", limits: Limits = LIMITS) -> Agent:
    tool = JupyterTool(limits=limits, flavour="stdlib", style=style)
    tools = Dispatcher(tools=[tool], sandbox=sandbox, max_parallel_calls=4)
    return make_agent(script, chat=CHAT, tools=tools, max_response_tokens=9000, max_turns=9, max_tool_tokens=2000)


async def rolled(sandbox: Any, *cells: str, **options: Any) -> Trajectory:
    """The trajectory of a policy that writes one cell per turn."""

    def script(request: Any) -> str:
        return call(cells[request.turn - 1]) if request.turn <= len(cells) else "it is 42"

    t = await run_trajectory(agent(sandbox, script, **options), TASK, KEY)
    check_trajectory(t)
    return t


def texts(t: Trajectory) -> list[str]:
    return [result.text for result in t.results]


STATEFUL = (
    "import random\nxs = [random.random() for _ in range(3)]\nprint(xs)",
    "def twice(x):\n    return 2 * x\nopen('note', 'w').write('kept')",
    "print(open('note').read(), xs[0])\ntwice(21)",
)


async def test_three_cells_share_variables_functions_and_files(pool: SandboxPool) -> None:
    t = await rolled(pool, *STATEFUL)
    first = texts(t)[0].strip("[]").split(", ")[0]
    assert texts(t)[1:] == ["4", f"kept {first}\n42"]
    assert t.outcome == Scored(reward=1.0, method="fake")
    assert pool.sessions == 0, "closed with its trajectory"


async def test_the_seed_is_the_trajectorys(pool: SandboxPool) -> None:
    again = [await rolled(pool, *STATEFUL) for _ in range(2)]
    assert texts(again[0]) == texts(again[1])


async def test_siblings_have_interpreters_of_their_own(pool: SandboxPool) -> None:
    def script(request: Any) -> str:
        cells = [f"mine = {request.sibling}", "mine", "import random; random.random()"]
        return call(cells[request.turn - 1]) if request.turn < 4 else "42"

    group = await run_group(agent(pool, script), TASK, size=4, seed=0, step=0)
    assert [texts(t)[1] for t in group.trajectories] == ["0", "1", "2", "3"]
    assert len({texts(t)[2] for t in group.trajectories}) == 4
    assert pool.sessions == 0


class Disturbed:
    """Opens sessions of `pool`; something happens to the first one when its third cell is due."""

    def __init__(self, pool: SandboxPool, how: str) -> None:
        self.pool, self.how, self.cells = pool, how, 0

    async def open_session(self, **options: Any) -> Any:
        session: Any = await self.pool.open_session(**options)
        run = session.run

        async def disturbed(code: str, **options: Any) -> Any:
            self.cells += 1
            running = None
            if self.cells == 3:
                if self.how == "evicted":
                    await self.pool.open_session(limits=LIMITS)
                    return await run(code, **options)
                if self.how == "supervisor killed under a cell":
                    os.kill(self.pool.supervisor_pid, signal.SIGSTOP)
                    running = asyncio.ensure_future(run(code, **options))
                    await asyncio.sleep(0)
                os.kill(self.pool.supervisor_pid, signal.SIGKILL)
            return await (running or run(code, **options))

        session.run = disturbed
        return session


@pytest.mark.parametrize("how", ["evicted", "supervisor killed", "supervisor killed under a cell"])
async def test_a_lost_interpreter_is_replayed_without_a_word(pool: SandboxPool, how: str) -> None:
    undisturbed = await rolled(pool, *STATEFUL)
    async with SandboxPool(("stdlib",), max_sessions=1) as small:
        t = await rolled(Disturbed(small, how), *STATEFUL)
        assert small.restarts == (how != "evicted")
    assert texts(t) == texts(undisturbed) and t.ids.tolist() == undisturbed.ids.tolist()
    assert [r.replayed for r in t.results] == [False, False, True]
    assert not any(r.restarted for r in t.results)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("import sys; sys.exit(0)", "ok"),
        ("import sys; sys.exit(3)", "error"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signaled"),
    ],
)
async def test_a_cell_that_ends_the_interpreter_costs_its_state_and_is_told(
    pool: SandboxPool, last: str, status: str
) -> None:
    t = await rolled(pool, "x = 1", last, "x", "x = 2", "x")
    assert t.results[1].status == status
    assert texts(t)[2].startswith("(the interpreter was restarted)\nTraceback")
    assert texts(t)[2].endswith("NameError: name 'x' is not defined")
    assert texts(t)[3:] == ["(no output)", "2"]
    assert [r.restarted for r in t.results] == [False, False, True, False, False]


RSTAR2 = [
    ("x = 41\nx + 1", "Tool call success\nstdout: 42\n\n"),
    ("print(x)", "Tool call success\nstdout: 41\n\n"),
    ("def half(y):\n    return y / 0", "Tool call success\n"),
    (
        "a = 1\nhalf(a)",
        "Tool call failure\nreason: \nstderr: ZeroDivisionError at line 2: division by zero\n  return y / 0\n\n",
    ),
    (
        "b = x\na = b / 0",
        "Tool call failure\nreason: \nstderr: ZeroDivisionError at line 2: division by zero\n  a = b / 0\n\n",
    ),
    (
        "def f(:",
        "Tool call failure\nreason: \nstderr: SyntaxError at line 1: invalid syntax (<unknown>, line 1)\n"
        "  def f(:\n\n",
    ),
    ("import warnings\nwarnings.warn('w')", "Tool call success\nstderr: <string>:2: UserWarning: w\n\n"),
    ("input()", "Tool call failure\nreason: \nstderr: EOFError at line 1: EOF when reading a line\n  input()\n\n"),
    ("x = [0] * (10**9)", "Tool call failure\nreason: \nstderr: MemoryError at line 1: \n  x = [0] * (10**9)\n\n"),
    (
        "print('go')\nwhile True: pass",
        "Tool call failure\nreason: worker_timeout\nstdout: go\nSuicide from timeout.\n\n",
    ),
    ("import sys; print('x'); sys.exit(1)", "Tool call failure\nreason: \nstdout: x\n\n"),
]


async def test_rstar2_strings_of_real_cells_are_the_originals(pool: SandboxPool) -> None:
    limits = Limits(wall_s=1.0, memory_bytes=256 << 20)
    t = await rolled(pool, *(code for code, _ in RSTAR2), style="rstar2", limits=limits)
    for (code, expected), text in zip(RSTAR2, texts(t), strict=False):
        assert text.rpartition("execution time: ")[0] == expected, code
        assert text.rpartition("execution time: ")[2].endswith("s")


async def test_branches_share_no_variable_file_or_random_stream(pool: SandboxPool) -> None:
    """Real interpreters, in both directions, at the same time."""
    tool = JupyterTool(limits=LIMITS, flavour="stdlib", style="plain")
    box = Dispatcher(tools=[tool], sandbox=pool)

    async def cell(tools: Any, code: str, turn: int) -> str:
        made = ToolCall(name=JUPYTER_TOOL, arguments={"code": code})
        (result,) = await tools.execute([made], turn=turn, deadline=None)
        assert result.status == "ok", result.text
        return str(result.text)

    first = "import os, random\nseen = ['root']\nopen('root', 'w').write('1')\nrandom.random()"
    draw = "seen, sorted(os.listdir()), random.random()"
    async with box.open(seed=1) as root:
        await cell(root, first, 1)
        openings = [root.branch(seed=seed) for seed in (2, 3)]
        async with openings[0] as left, openings[1] as right:  # type: ignore[union-attr]
            made = {"root": root, "left": left, "right": right}
            for turn in (2, 3):
                await asyncio.gather(
                    *(
                        cell(tools, f"seen.append('{name}')\nopen('of {name}', 'a').write(os.getcwd())", turn)
                        for name, tools in made.items()
                    )
                )
            drawn = {name: await cell(tools, draw, 4) for name, tools in made.items()}
            folders = {await cell(tools, "os.getcwd()", 5) for tools in made.values()}
    assert len(folders) == 3 and pool.sessions == 0
    for name, text in drawn.items():
        expected = f"(['root', '{name}', '{name}'], ['of {name}', 'root'], "
        assert text.startswith(expected), text
    randoms = [text.rpartition(",")[2] for text in drawn.values()]
    assert len(set(randoms)) == 3
    async with box.open(seed=1) as alone:
        await cell(alone, first, 1)
        assert (await cell(alone, "random.random()", 2)) + ")" == randoms[0].strip(), "the root's is its own"
