"""Forks: branches of a rollout share the parent's part, and nothing else."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rocstar.engine.fleet.fleet import group_of
from rocstar.engine.record.json_record import check_branches
from rocstar.engine.rollout.forks import ForkRule, after_an_error, after_every_turn
from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.tool import Tool, ToolContext, ToolOutput
from rocstar.engine.types import Failed, FinishReason, Fork, Group, Origin, TrajectoryKey
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError
from rocstar.train.groups.rollout_metrics import fork_metrics
from tests.fakes.agents import TASK, TOKENIZER, make_agent, python_tools, tool_call
from tests.fakes.sandbox import FakeSandbox, error, ok
from tests.fakes.scripted_policy import Reply, Request, ScriptedPolicy, check_trajectory, run_virtual
from tests.fakes.trajectories import FakeTurn, make_trajectory

ERROR = ForkRule(chooses=after_an_error)


def answer(request: ExecRequest) -> ExecResult:
    return error("ValueError\n") if "bad" in request.code else ok(f"{request.code} {request.seed}")


def name_of(request: Request) -> str:
    return request.request_id.split("/", 2)[2]


def agent(script: Any, **changes: Any) -> Agent:
    """An agent; its script gets the name of the trajectory and the number of its turn, the parent's counted."""

    def reply(request: Request) -> str | Reply:
        made: str | Reply = script(name_of(request), TOKENIZER.decode(request.ids).count("<|im_start|>assistant"))
        return made

    return make_agent(ScriptedPolicy(reply, TOKENIZER), **{"tools": python_tools(FakeSandbox(answer)), **changes})


def roll(made: Agent, forks: ForkRule | None, size: int = 1) -> Group:
    group = run_virtual(run_group(made, TASK, size=size, seed=1, step=2, forks=forks))
    for t in group.trajectories:
        check_trajectory(t)
        if t.fork is not None:
            named = (t.key.sibling, t.fork.parent)
            (parent,) = [p for p in group.trajectories if (p.key.sibling, p.key.branch) == named]
            assert t.turns[: t.fork.turns] == parent.turns[: t.fork.turns]
            assert t.ids[: t.fork.start].tolist() == parent.ids[: t.fork.start].tolist()
    return group


def names(group: Group) -> list[str]:
    return [str(t.key).partition("/t/")[2] for t in group.trajectories]


def recovers(name: str, turn: int) -> str:
    """A failed call first; then an answer, which names its trajectory."""
    return tool_call("bad") if turn == 1 else f"{name}: 4"


def test_a_branch_counts_and_trains_what_it_sampled_itself() -> None:
    turns = FakeTurn(ids=[2, 3], answer=[7]), FakeTurn(ids=[4, 5, 6])
    root = make_trajectory(*turns)
    branch = make_trajectory(*turns, fork=Fork(parent="", turns=1, start=4))
    assert root.loss_mask().tolist() == [False, True, True, False, True, True, True]
    assert branch.loss_mask().tolist() == [False, False, False, False, True, True, True]
    assert (root.num_policy_tokens, branch.num_policy_tokens) == (5, 3)
    assert len(branch.turns) == 2


def test_a_key_names_its_branch() -> None:
    root = TrajectoryKey(seed=0, step=4, task_id="a", sibling=5)
    nested = root.behind(3, 1).behind(5, 2)
    assert (str(root), str(nested)) == ("s4/a/5", "s4/a/5~3.1/5.2")
    other = TrajectoryKey(seed=0, step=4, task_id="a", sibling=10)
    ordered = [root, root.behind(3, 1), nested, root.behind(3, 2), root.behind(11, 1), other]
    assert sorted(reversed(ordered), key=lambda key: key.order) == ordered


def test_a_failed_call_is_continued_twice() -> None:
    made = agent(recovers)
    group = roll(made, ERROR, size=2)
    assert names(group) == ["0", "0~1.1", "1", "1~1.1"]
    assert [t.turns[-1].text for t in group.trajectories] == ["0: 4", "0~1.1: 4", "1: 4", "1~1.1: 4"]
    root, branch = group.trajectories[:2]
    assert branch.fork == Fork(parent="", turns=1, start=branch.turns[1].start)
    assert branch.turns[0].results == root.turns[0].results
    assert isinstance(made.inference, ScriptedPolicy)
    seeds = {name_of(request): request.seed for request in made.inference.requests}
    assert seeds == {name: stream_of(t.key) for name, t in zip(names(group), group.trajectories, strict=True)}
    assert len(set(seeds.values())) == 4
    assert sorted(made.inference.released) == [f"s2/t/{name}" for name in sorted(names(group))]


def test_the_parent_is_as_without_forks() -> None:
    def script(name: str, turn: int) -> str:
        return tool_call("bad" if turn < 4 else "fine") if turn < 6 else f"{turn}: 4"

    plain = roll(agent(script), None, size=3)
    forked = roll(agent(script), ForkRule(chooses=after_every_turn, width=3, depth=2), size=3)
    assert [t for t in forked.trajectories if t.fork is None] == list(plain.trajectories)
    assert len(forked.trajectories) == 27


def test_nothing_forks_where_nothing_is_chosen() -> None:
    group = roll(agent(lambda name, turn: tool_call("good") if turn == 1 else "4"), ERROR)
    assert names(group) == ["0"]


@pytest.mark.parametrize(("width", "depth"), [(2, 1), (4, 1), (2, 3), (3, 2)])
def test_width_and_depth_bound_the_tree(width: int, depth: int) -> None:
    rule = ForkRule(chooses=after_every_turn, width=width, depth=depth)
    group = roll(agent(lambda name, turn: tool_call("good") if turn < 8 else "4"), rule)
    assert len(group.trajectories) == width**depth == 1 + rule.most_branches
    assert names(group)[:2] == ["0", "0~1.1"]
    assert max(t.key.branch.count("/") for t in group.trajectories) == depth - 1


def test_a_branch_has_its_even_share_of_tokens() -> None:
    rule = ForkRule(chooses=after_an_error, width=3, tokens=101)
    long = "x" * 300

    def script(name: str, turn: int) -> str:
        return tool_call("bad") if turn == 1 else f"4 {long if '~1.1' in name else ''}"

    root, first, second = roll(agent(script), rule).trajectories
    assert (root.finish_reason, second.finish_reason) == (FinishReason.answered, FinishReason.answered)
    assert (first.finish_reason, first.num_policy_tokens) == (FinishReason.max_tokens, 50)


@pytest.mark.parametrize("delays", [(0.0, 5.0, 9.0), (9.0, 5.0, 0.0)])
def test_order_of_execution_does_not_matter(delays: tuple[float, ...]) -> None:
    def script(delay_s: dict[str, float]) -> Any:
        def reply(name: str, turn: int) -> Reply:
            return Reply(text=recovers(name, turn) if turn != 2 else tool_call("bad"), delay_s=delay_s.get(name, 0.0))

        return reply

    rule = ForkRule(chooses=after_an_error, width=3, depth=2, tokens=4000)
    by_name = dict(zip(("0", "0~1.1", "0~1.2/2.1"), delays, strict=True))
    assert roll(agent(script(by_name)), rule).trajectories == roll(agent(script({})), rule).trajectories


def test_a_branch_has_its_own_stream_for_its_tools() -> None:
    def script(name: str, turn: int) -> str:
        return tool_call("bad") if turn == 1 else tool_call("draw") if turn == 2 else "4"

    root, branch = roll(agent(script), ERROR).trajectories
    texts = [t.turns[1].results[0].text for t in (root, branch)]
    assert texts[0].split() == ["draw", str(stream_of(root.key, purpose="tools") + 128)]
    assert texts[1].split() == ["draw", str(stream_of(branch.key, purpose="tools") + 128)]


class Notes(Tool):
    """Keeps what it was called with."""

    name, description, parameters = "notes", "", {"type": "object", "properties": {"code": {"type": "string"}}}

    def __init__(self) -> None:
        self.open_sessions: list[list[str]] = []

    async def open(self, context: ToolContext) -> Any:
        self.open_sessions.append([])
        return self.open_sessions[-1]

    async def call(self, arguments: Any, context: ToolContext) -> ToolOutput:
        context.session.append(arguments["code"])
        return ToolOutput(" ".join(context.session))

    async def close(self, session: Any) -> None:
        self.open_sessions = [one for one in self.open_sessions if one is not session]


class CopiedNotes(Notes):
    async def branch(self, session: Any) -> Any:
        if "broken" in session:
            raise SandboxError("no", kind="session_lost", retryable=True)
        if "slow" in session:
            await asyncio.sleep(1e5)
        self.open_sessions.append([*session])
        return self.open_sessions[-1]


def notes(made: Notes, first: str = "a") -> Agent:
    def script(name: str, turn: int) -> str:
        return tool_call(first if turn == 1 else f"b{name}", "notes") if turn < 3 else "4"

    return agent(script, tools=Dispatcher(tools=[made]))


def test_a_session_is_copied() -> None:
    tool = CopiedNotes()
    root, branch = roll(notes(tool), ForkRule(chooses=after_every_turn)).trajectories
    assert [t.turns[1].results[0].text for t in (root, branch)] == ["a b0", "a b0~1.1"]
    assert tool.open_sessions == []


def test_a_session_that_cannot_be_copied_does_not_fork() -> None:
    tool = Notes()
    assert names(roll(notes(tool), ForkRule(chooses=after_every_turn))) == ["0"]
    assert tool.open_sessions == []


@pytest.mark.parametrize(("first", "kind"), [("broken", "session_lost"), ("slow", "tool_failed")])
def test_a_failed_branch_is_data(first: str, kind: str) -> None:
    tool = CopiedNotes()
    root, branch = roll(notes(tool, first), ForkRule(chooses=after_every_turn)).trajectories
    assert root.turns[-1].text == "4" and not isinstance(root.outcome, Failed)
    assert isinstance(branch.outcome, Failed) and branch.outcome.kind == kind
    assert (branch.num_policy_tokens, branch.segments[-1].origin) == (0, Origin.tool)
    assert tool.open_sessions == []


def test_a_bug_in_a_branch_ends_the_group() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        roll(agent(lambda name, turn: "bug" if "~" in name else recovers(name, turn)), ERROR, size=2)
    assert caught.value.subgroup(KeyError) is not None


@pytest.mark.parametrize("name", ["s4/a/5", "s4/a/5~3.1", "s4/a/5~3.1/5.2", "s4/a/11~12.1/13.10/14.2"])
def test_a_branch_is_of_its_roots_group(name: str) -> None:
    assert group_of(name) == "s4/a"
    assert group_of("s4/a~1.2/5") == "s4/a~1.2" and group_of("alone") == "alone"


def test_a_branch_that_is_not_its_parents_is_no_record() -> None:
    turns = FakeTurn(ids=[2, 3], answer=[7]), FakeTurn(ids=[4])
    root = make_trajectory(*turns)
    branch = make_trajectory(*turns, key=root.key.behind(1, 1), fork=Fork(parent="", turns=1, start=4))
    check_branches([root, branch])
    other = FakeTurn(ids=[2, 4], answer=[7])
    for wrong, told in (
        ([branch], "no parent here"),
        ([root, replace(branch, fork=None)], "does not say where it leaves"),
        ([root, replace(branch, fork=Fork(parent="1.1", turns=1, start=4))], "no parent here"),
        ([root, make_trajectory(other, turns[1], key=branch.key, fork=branch.fork)], "differ before token 4"),
        ([root, replace(branch, fork=Fork(parent="", turns=1, start=99))], "differ before token 99"),
    ):
        with pytest.raises(ValueError, match=told):
            check_branches(wrong)


def test_metrics_count_a_shared_call_once() -> None:
    rule = ForkRule(chooses=after_an_error, width=3)
    group = roll(agent(lambda name, turn: recovers(name, turn) if "~1.1" not in name else "5"), rule, size=2)
    weighted = [(1.0, t) for t in group.trajectories]
    assert fork_metrics(weighted) == {"fork/branches": 4.0, "fork/recovered": pytest.approx(4 / 6)}
    assert sum(len(turn.results) for t in group.trajectories for turn in t.own_turns) == 2
    assert fork_metrics([(w, t) for w, t in weighted if t.fork is None]) == {}
