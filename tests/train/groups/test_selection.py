"""Every trajectory is in one bucket, a failed one has no advantage, the order of groups does not matter."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocstar.engine.rollout.rollout import ENDED_EARLY, POLICY_TIMEOUT
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Task,
    ToolCall,
    Trajectory,
    TrajectoryKey,
)
from rocstar.sandbox.types import ExecResult, Status
from rocstar.train.algorithm.roc import Penalty
from rocstar.train.groups.selection import Selection, num_missing, penalty_of, select, unneeded_siblings
from rocstar.train.learner.batch import policy_examples
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes import sandbox as fake

from ...engine.tool_calls import box, call, execute
from .batches import ANSWER, BUCKETS, batches, config, group, make

modes = st.sampled_from(["paper", "sort", "uniform"])


@given(groups=batches, mode=modes, keep=st.integers(2, 8))
def test_the_ledger_has_every_trajectory_once(groups: list[Group], mode: str, keep: int) -> None:
    selection = select(groups, config(keep, 8, mode), seed=0)
    generated = [t for g in groups for t in g.trajectories]
    assert Counter(id(t) for t, _ in selection.verdicts) == Counter(map(id, generated))
    ledger = selection.ledger()
    assert set(ledger) <= BUCKETS and ledger.total() == len(generated)
    assert ledger["kept"] == len(selection.kept) == len(selection.advantages)
    assert ledger["failed"] == sum(isinstance(t.outcome, Failed) for t in generated)
    assert selection.groups_used + selection.groups_no_signal == len(groups)
    for trajectory, verdict in selection.verdicts:
        assert (verdict.bucket == "failed") == isinstance(trajectory.outcome, Failed)
        assert (verdict.advantage is not None) == (verdict.bucket == "kept")
        assert (verdict.penalty_error is None) == (verdict.bucket == "failed")


@example(groups=[group("late", [(1.0, 0, 0)] * 8)], wanted=1, timeouts="negative")  # a signal by the late ones alone
@given(groups=batches, wanted=st.integers(0, 6), timeouts=st.sampled_from(["leave_out", "negative"]))
def test_what_is_missing_is_what_the_selection_does_not_use(groups: list[Group], wanted: int, timeouts: str) -> None:
    late = Failed(kind=POLICY_TIMEOUT, retryable=False, detail="")
    first = groups[0]
    timed_out = tuple(replace(t, outcome=late) for t in first.trajectories[:2]) + first.trajectories[2:]
    groups = [replace(first, trajectories=timed_out), *groups[1:]]
    rl = config(8, 8).model_copy(update={"timeouts": timeouts})
    used = select(groups, rl, seed=0).groups_used
    assert num_missing(groups, rl, wanted=wanted) == max(0, wanted - used)


@given(groups=batches, mode=modes, keep=st.integers(2, 8))
def test_what_is_kept_has_a_reward_and_a_fair_advantage(groups: list[Group], mode: str, keep: int) -> None:
    selection = select(groups, config(keep, 8, mode), seed=0)
    for g in groups:
        kept = [
            (t.outcome.reward, a)
            for t, a in zip(selection.kept, selection.advantages, strict=True)
            if t.key.task_id == g.task.id and isinstance(t.outcome, Scored)
        ]
        rewards = {t.outcome.reward for t in g.scored if isinstance(t.outcome, Scored)}
        assert len(kept) == (min(keep, len(g.scored)) if len(rewards) == 2 else 0)
        assert all((advantage > 0) == (reward == 1.0) for reward, advantage in kept)
        assert sum(advantage for _, advantage in kept) == pytest.approx(0.0, abs=1e-6)
    assert not any(isinstance(t.outcome, Failed) for t in selection.kept)


@given(groups=batches, mode=modes, seed=st.integers(0, 5), order=st.randoms(use_true_random=False))
def test_the_draw_does_not_depend_on_the_order_of_groups(
    groups: list[Group], mode: str, seed: int, order: object
) -> None:
    shuffled = list(groups)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (select(g, config(3, 8, mode), seed=seed) for g in (groups, shuffled))
    assert first == second


def test_a_group_that_was_served_has_as_many_siblings_as_were_asked_for() -> None:
    selection = select([group("task", [(1.0, 0, 1), (0.0, 0, 1)])], config(4, 8), seed=0)
    assert len(selection.kept) == 2 and selection.groups_used == 1


def late(name: str, kind: str) -> Group:
    """A right sibling, a wrong one, and two failed ones: in the first turn, and in the second."""
    made = group(name, [(1.0, 0, 1), (0.0, 0, 0), (None, 0, 0), (None, 0, 0)])
    right, wrong, first, second = made.trajectories
    lost = Failed(kind=kind, retryable=True, detail="")
    prompt = right.segments[0]
    tool = Segment(start=3, end=5, origin=Origin.tool)
    first = replace(
        first, outcome=lost, ids=(1,), logprobs=(None,), segments=(prompt,), turns=(), finish_reason=ABORTED
    )
    second = replace(
        second,
        outcome=lost,
        ids=(1, 2, 3, 4, 5),
        logprobs=(None, -0.5, -0.5, None, None),
        segments=(*second.segments, tool),
        finish_reason=ABORTED,
    )
    return replace(made, trajectories=(right, wrong, first, second))


ABORTED = FinishReason.aborted


@pytest.mark.parametrize(
    ("timeouts", "kind", "failures"),
    [
        ("negative", "policy_timeout", 0),
        ("negative", "trajectory_timeout", 2),
        ("negative", "sandbox_lost", 2),
        ("leave_out", "policy_timeout", 2),
    ],
)
def test_a_policy_that_outlives_the_clock_is_a_negative_where_the_recipe_says_so(
    timeouts: str, kind: str, failures: int
) -> None:
    rl = RlConfig(rollouts_per_task=4, group_size=4, timeouts=timeouts)  # type: ignore[arg-type]
    selection = select([late("task", kind)], rl, seed=0)
    assert selection.ledger() == {"kept": 4 - failures, **({"failed": failures} if failures else {})}
    assert selection.num_timed_out == (0 if kind == "sandbox_lost" else 2)
    assert selection.advantages[0] == pytest.approx(0.5**0.5 if failures else 1.5, rel=1e-3)
    if not failures:
        cut, trimmed = selection.kept[2:]
        assert (len(cut.ids), len(trimmed.ids)) == (1, 3)
        assert cut.outcome == trimmed.outcome == Scored(reward=0.0, method="policy_timeout")
        assert len(policy_examples([*selection.kept[:2], trimmed], [1.0] * 3)) == 3


def test_the_draw_depends_on_seed_and_step_of_the_rollout() -> None:
    groups = [group(f"task{k}", [(float(j % 2), 0, 1) for j in range(8)]) for k in range(6)]
    kept = {
        tuple(
            (t.task.id, t.key.sibling)
            for t in select([of_step(group, step) for group in groups], config(4, 8), seed=seed).kept
        )
        for seed in (0, 1)
        for step in (1, 2)
    }
    assert len(kept) == 4


def of_step(group: Group, step: int) -> Group:
    return replace(group, trajectories=tuple(replace(t, key=replace(t.key, step=step)) for t in group.trajectories))


@pytest.mark.parametrize("mode", ["paper", "uniform", "sort"])
def test_a_group_keeps_the_same_siblings_without_those_that_ended_early(mode: str) -> None:
    rl, num_ended = config(4, 8, mode), 0
    gone = Failed(kind=ENDED_EARLY, retryable=False, detail="")
    for number in range(200):
        rng = random.Random(number)
        whole = group(f"task{number}", [(float(rng.random() < 0.5), rng.randint(0, 1), 1) for _ in range(8)])
        over = dict[TrajectoryKey, Trajectory]()
        for t in rng.sample(whole.trajectories, 8):
            over.setdefault(t.key, t)
            running = [t.key for t in whole.trajectories if t.key not in over]
            known = [t for t in over.values() if t.outcome is not gone]
            for key in unneeded_siblings(known, running, rl, seed=0):
                over[key] = replace(whole.trajectories[key.sibling], outcome=gone, finish_reason=ABORTED)
        partial = replace(whole, trajectories=tuple(over[t.key] for t in whole.trajectories))
        selection = select([partial], rl, seed=0)
        assert [t.key for t in selection.kept] == [t.key for t in select([whole], rl, seed=0).kept]
        assert sum(selection.ledger().values()) == 8
        num_ended += selection.ledger()["ended_early"]
    assert num_ended > 10


def test_a_call_counts_once_it_was_answered() -> None:
    task = Task(id="t", source="s", question="q", answer="1")
    made = make(task, 0, 1.0, errors=1, clean=2, text=ANSWER + ANSWER)
    assert penalty_of(made) == Penalty(error=1 / 3, format=1 / 2)  # two answers in two turns
    assert Attempt(task=task, turns=made.turns, is_truncated=False).text == f"call\n{ANSWER}{ANSWER}"


ENDS: dict[Status, ExecResult] = {
    Status.OK: fake.ok("1"),
    Status.ERROR: fake.error("NameError"),
    Status.SIGNALED: fake.signaled(),
    Status.TIMEOUT: fake.timeout(),
    Status.MEMORY_LIMIT: fake.memory_limit(),
    Status.OUTPUT_LIMIT: fake.output_limit(),
    Status.DENIED: fake.denied(),
}
REFUSED: dict[str, ToolCall] = {
    "malformed_call": ToolCall(name=None, arguments=None, malformed="not JSON"),
    "unknown_tool": call("ok", name="search"),
    "bad_arguments": call(1),
}


@pytest.mark.parametrize("status", [*Status, *REFUSED, "too_many_calls"])
async def test_the_penalty_counts_every_call_that_is_not_ok(status: str) -> None:
    """Eq. 4 over what the tools answer: each status once, beside one call that is ok."""
    other = REFUSED.get(status) or call("beyond" if status == "too_many_calls" else status)
    tools = box(
        {"ok": fake.ok("1"), "fine": fake.ok("1"), **ENDS}, max_parallel_calls=1 if status == "too_many_calls" else 2
    )
    calls = (call("fine"), other)
    results = await execute(tools, *calls)
    assert [result.status for result in results] == ["ok", status]

    made = make(Task(id="t", source="s", question="q", answer="1"), 0, 1.0, clean=1)
    made = replace(made, turns=(replace(made.turns[0], calls=calls, results=results), made.turns[1]))
    errors = int(status != "ok")
    assert penalty_of(made).error == errors / 2


def test_clean_positives_are_kept_more_often() -> None:
    """Two clean and two failing positives, one of each kept by `sort`: never a failing one."""
    members = [(1.0, 0, 1), (1.0, 2, 0), (1.0, 2, 0), (1.0, 0, 1), (0.0, 0, 1), (0.0, 0, 1), (0.0, 0, 1), (0.0, 0, 1)]
    selection = select([group("t", members)], config(4, 8, "sort"), seed=0)
    positives = [t for t in selection.kept if isinstance(t.outcome, Scored) and t.outcome.reward]
    assert [t.key.sibling for t in positives] == [0, 3]


def test_no_groups_are_no_selection() -> None:
    selection = select([], config(2, 8), seed=0)
    assert selection == Selection(kept=[], advantages=[], verdicts=[], groups_used=0, groups_no_signal=0)
