"""The state a cell meets, whatever became of the interpreter before it."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocstar.engine.tools.jupyter import CLOSE_TIMEOUT_S, RESEED, Interpreter, Ran
from rocstar.sandbox.types import ExecResult, Limits, SandboxError, SessionLost
from tests.fakes import sandbox as fake
from tests.fakes.scripted_policy import run_virtual

LIMITS = Limits(wall_s=1.5)
NOT_ITS_FAULT = ["evicted", "expired", "supervisor_died", "unknown"]


class Notebooks:
    """Sessions whose state is the list of what ran in them; it is also what every cell shows.

    `losses` says for each cell that is asked for, in order, whether its session is lost before it runs."""

    def __init__(self, losses: list[str | None] | None = None) -> None:
        self.losses = losses or []
        self.opened: list[Notebook] = []
        self.asked = 0
        self.open_s = 0.0

    async def open_session(self, *, flavour: str, limits: Limits, seed: int) -> "Notebook":
        await asyncio.sleep(self.open_s)
        self.opened.append(Notebook(self, (flavour, limits, seed)))
        return self.opened[-1]


class Notebook:
    def __init__(self, sandbox: Notebooks, options: tuple[str, Limits, int]) -> None:
        self.sandbox, self.options = sandbox, options
        self.state: list[Any] = [options[2]]
        self.lost: str | None = None
        self.closed = 0

    async def run(self, code: str, *, wall_s: Any = None, deadline: float | None = None) -> ExecResult:
        sandbox, k = self.sandbox, self.sandbox.asked
        sandbox.asked += 1
        await asyncio.sleep(0)
        if self.lost is None and k < len(sandbox.losses):
            self.lost = sandbox.losses[k]
        if self.lost is not None:
            raise SessionLost(f"gone: {self.lost}", reason=self.lost)
        self.state.append(code)
        if code == "exit":
            self.lost = "died"
        if code == "exit, and then the supervisor":
            self.lost = "supervisor_died" if len(sandbox.opened) == 1 else "died"
        if code.startswith("exit"):
            return fake.error(exit_code=3, stdout=str(self.state))
        return fake.error(stdout=str(self.state)) if code == "boom" else fake.ok(str(self.state))

    async def branch(self) -> "Notebook":
        if self.lost is not None:
            raise SessionLost(f"gone: {self.lost}", reason=self.lost)
        other = Notebook(self.sandbox, self.options)
        other.state = list(self.state)
        return other

    async def close(self) -> None:
        self.closed += 1


def interpreter(sandbox: Any) -> Interpreter:
    return Interpreter(sandbox, flavour="numeric", limits=LIMITS, seed=7)


async def run_all(sandbox: Any, codes: list[str]) -> list[Ran]:
    made = interpreter(sandbox)
    try:
        return [await made.run(code, deadline=None) for code in codes]
    finally:
        await made.close()


cells = st.sampled_from(["a", "b", "boom", "exit", "exit, and then the supervisor"])


@given(codes=st.lists(cells, max_size=8), losses=st.lists(st.sampled_from([None, *NOT_ITS_FAULT]), max_size=20))
@example(codes=["a", "b", "a"], losses=[None, None, "evicted"])
@example(codes=["a"], losses=["evicted"])
@example(codes=["exit, and then the supervisor", "a"], losses=[])
@example(codes=["exit", "a"], losses=[None, "evicted", "evicted"])
@example(codes=["a", "exit", "b", "a"], losses=[None, None, None, None, "evicted"])
def test_losses_that_are_not_the_cells_fault_are_never_seen(codes: list[str], losses: list[str | None]) -> None:
    """Every result is that of an undisturbed run, or there is none at all."""
    undisturbed = asyncio.run(run_all(Notebooks(), ["exit" if c.startswith("exit") else c for c in codes]))
    sandbox, failure, ran = Notebooks(losses), None, []
    try:
        ran = asyncio.run(run_all(sandbox, codes))
    except SandboxError as error:
        failure = error
    if failure is not None:
        assert (failure.kind, failure.retryable) == ("session_lost", True)
        happened = [loss for loss in losses[: sandbox.asked] if loss]
        assert len(happened) > 1 or (happened and "exit, and then the supervisor" in codes)
        return
    shown = [r.result.stdout.replace(", and then the supervisor", "") for r in ran]
    assert shown == [r.result.stdout for r in undisturbed]
    assert [r.restarted for r in ran] == [r.restarted for r in undisturbed]
    assert [r.restarted for r in ran] == [False, *(code.startswith("exit") for code in codes)][: len(codes)]
    if not any(losses) and "exit, and then the supervisor" not in codes:
        assert not any(r.replayed for r in ran)


async def run_branched(sandbox: Any, before: list[str], after: list[str]) -> list[list[Ran]]:
    """What comes behind a branch: of the branch, then of the one that it was made of."""
    made = interpreter(sandbox)
    for code in before:
        await made.run(code, deadline=None)
    other = made.branch()
    return [[await one.run(code, deadline=None) for code in after] for one in (other, made)]


@given(before=st.lists(cells, max_size=4), after=st.lists(cells, max_size=4))
@example(before=["a", "exit"], after=["b", "a"])
@example(before=[], after=["a"])
@example(before=["a"], after=["exit", "b"])
def test_a_branch_goes_on_as_the_other_does(before: list[str], after: list[str]) -> None:
    """Neither sees what the other does, and a branch of one that a cell ended tells so, too."""
    before, after = ([c.partition(",")[0] for c in codes] for codes in (before, after))
    alone = asyncio.run(run_all(Notebooks(), [*before, *after]))[len(before) :]
    for ran in asyncio.run(run_branched(Notebooks(), before, after)):
        assert [(r.result.stdout, r.restarted, r.replayed) for r in ran] == [
            (r.result.stdout, r.restarted, False) for r in alone
        ]


@pytest.mark.parametrize("is_branch", [True, False])
async def test_whichever_of_two_is_lost_is_built_from_its_own_cells(is_branch: bool) -> None:
    losses = [*[None] * (4 if is_branch else 5), "evicted"]  # the branch runs "a" and "b" again first
    branch, other = await run_branched(Notebooks(losses), ["a", "b"], ["a"])
    assert [branch[0].replayed, other[0].replayed] == [is_branch, not is_branch]
    assert branch[0].result.stdout == other[0].result.stdout == str([7, "a", "b", "a"])


async def test_a_branch_has_a_random_stream_of_its_own_from_its_first_cell_on() -> None:
    """Its cells of before are run with the parent's, and what a restart begins has its own."""
    sandbox = Notebooks([*[None] * 6, "died"])
    made = interpreter(sandbox)
    await made.run("a", deadline=None, seed=1)
    branch, unused, empty = made.branch(), made.branch(), interpreter(sandbox).branch()
    assert len(sandbox.opened) == 1, "an interpreter that is not used is not opened"
    for code in ("b", "b"):
        ran = await branch.run(code, deadline=None, seed=2)
    reseed = RESEED.format(2)
    assert ran.result.stdout == str([7, "a", reseed, "b", "b"])
    ran = await branch.run("c", deadline=None, seed=3)
    assert (ran.result.stdout, ran.restarted) == (str([7, "a", reseed, "b", "b", "c"]), False)
    ran = await branch.run("d", deadline=None, seed=3)
    assert (ran.result.stdout, ran.restarted) == (str([2, "d"]), True)
    assert (await made.run("c", deadline=None, seed=4)).result.stdout == str([7, "a", "c"])
    assert (await empty.run("c", deadline=None, seed=5)).result.stdout == str([5, "c"])
    await unused.close()


async def test_a_branch_of_what_its_last_cell_ended_says_so() -> None:
    made = interpreter(Notebooks())
    await made.run("exit", deadline=None)
    ran = await made.branch().run("a", deadline=None, seed=2)
    assert (ran.restarted, ran.result.stdout) == (True, str([2, RESEED.format(2), "a"]))


@pytest.mark.parametrize("reason", NOT_ITS_FAULT)
async def test_a_lost_interpreter_is_built_again_from_its_cells(reason: str) -> None:
    sandbox = Notebooks([None, None, reason])
    ran = await run_all(sandbox, ["a", "boom", "b", "a"])
    assert [r.replayed for r in ran] == [False, False, True, False]
    assert [r.restarted for r in ran] == [False] * 4
    assert ran[-1].result.stdout == str([7, "a", "boom", "b", "a"])
    first, second = sandbox.opened
    assert first.options == second.options == ("numeric", LIMITS, 7), "the same seed, so the same draws"
    assert second.closed == 1


async def test_an_interpreter_that_a_cell_ended_is_followed_by_a_fresh_one() -> None:
    sandbox = Notebooks()
    ran = await run_all(sandbox, ["a", "exit", "b", "a"])
    assert ran[1].result.exit_code == 3, "the cell that ended it has its result"
    assert [r.restarted for r in ran] == [False, False, True, False]
    assert [r.result.stdout for r in ran[2:]] == [str([7, "b"]), str([7, "b", "a"])]
    assert len(sandbox.opened) == 2 and not any(r.replayed for r in ran)


async def test_an_end_that_came_before_any_cell_is_not_the_policys() -> None:
    (ran,) = await run_all(Notebooks(["died"]), ["a"])
    assert (ran.restarted, ran.replayed, ran.result.stdout) == (False, True, str([7, "a"]))


@pytest.mark.parametrize(
    ("losses", "codes"),
    [
        ([None, "evicted", "evicted"], ["a", "b"]),  # lost again in the replay
        ([None, "evicted", None, "expired"], ["a", "b"]),  # lost again behind it
        ([None, None, "evicted", "died"], ["a", "b", "a"]),  # a replayed cell ended it, as it had not before
        (["died", "died"], ["a"]),
    ],
)
async def test_what_cannot_be_built_again_is_our_failure(losses: list[str | None], codes: list[str]) -> None:
    with pytest.raises(SandboxError) as caught:
        await run_all(Notebooks(losses), codes)
    assert (caught.value.kind, caught.value.retryable) == ("session_lost", True)
    assert not isinstance(caught.value, SessionLost)


async def test_a_cell_that_ends_otherwise_in_the_replay_is_our_failure() -> None:
    class Moody(Notebook):
        async def run(self, code: str, **options: Any) -> ExecResult:
            result = await super().run(code, **options)
            return fake.error() if len(self.sandbox.opened) > 1 else result

    sandbox = Notebooks([None, "evicted"])

    async def open_session(**options: Any) -> Notebook:
        sandbox.opened.append(Moody(sandbox, tuple(options.values())))  # type: ignore[arg-type]
        return sandbox.opened[-1]

    sandbox.open_session = open_session  # type: ignore[method-assign]
    with pytest.raises(SandboxError, match="cell 1 ended with error, before it was ok") as caught:
        await run_all(sandbox, ["a", "b"])
    assert caught.value.kind == "session_lost"
    assert sandbox.opened[1].closed == 1, "the half-built interpreter is let go"


@pytest.mark.parametrize("at", ["first", "restart"])
async def test_a_sandbox_that_cannot_open_fails_as_itself(at: str) -> None:
    broken = SandboxError("no", kind="zygote_died", retryable=True)

    class Broken(Notebooks):
        async def open_session(self, **options: Any) -> Notebook:
            if at == "restart" and not self.opened:
                return await super().open_session(**options)
            raise broken

    with pytest.raises(SandboxError) as caught:
        await run_all(Broken(), ["exit", "a"])
    assert caught.value is broken


def test_opening_ends_with_the_deadline_and_so_does_a_replay() -> None:
    async def late(losses: list[str | None], codes: list[str]) -> None:
        sandbox = Notebooks(losses)
        made = interpreter(sandbox)
        for code in codes[:-1]:
            await made.run(code, deadline=None)
        sandbox.open_s = 100.0
        await made.run(codes[-1], deadline=asyncio.get_running_loop().time() + 5.0)

    with pytest.raises(TimeoutError):
        run_virtual(late([], ["a"]))
    with pytest.raises(SandboxError, match="the deadline passed") as caught:
        run_virtual(late([None, "evicted"], ["a", "b"]))
    assert caught.value.kind == "session_lost"


# ---- its end ----


async def test_closing_is_for_what_was_opened_and_once() -> None:
    sandbox = Notebooks()
    made = interpreter(sandbox)
    await made.close()
    assert sandbox.opened == [], "opened lazily"
    await made.run("a", deadline=None)
    await made.close()
    await made.close()
    assert [session.closed for session in sandbox.opened] == [1]


@pytest.mark.parametrize("how", ["lost", "closed pool", "hangs"])
def test_closing_never_fails_and_never_hangs(how: str) -> None:
    class Stuck(Notebook):
        async def close(self) -> None:
            if how == "hangs":
                await asyncio.Event().wait()
            raise (
                SessionLost("x", reason="evicted")
                if how == "lost"
                else SandboxError("x", kind="closed", retryable=False)
            )

    class Sandbox(Notebooks):
        async def open_session(self, **options: Any) -> Notebook:
            return Stuck(self, tuple(options.values()))  # type: ignore[arg-type]

    async def main() -> float:
        made = interpreter(Sandbox())
        await made.run("a", deadline=None)
        await made.close()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == (CLOSE_TIMEOUT_S if how == "hangs" else 0.0)
