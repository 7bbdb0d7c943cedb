"""What each policy decides, that none can see the future, and what ours predicts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.events import (
    Drop,
    Grant,
    Left,
    LoadSeen,
    ReplicaDown,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.occupancy import Occupancy
from rocstar.engine.scheduling.policies import POLICIES, make_policy, predictive
from rocstar.engine.scheduling.predictor import NUM_BINS, Floats, Ints, LengthPredictor
from rocstar.engine.scheduling.schedule_state import ScheduleState, TrajectoryEntry
from rocstar.engine.scheduling.waiting import WaitingQueue
from tests.engine.scheduling.clockwork import TEN, again, begin, clockwork, lengths, submit, swap_futures, where


def with_variance(going_on_NK: Floats) -> Floats:
    """Return probabilities, then p (1 - p) of each: the data of a forecast."""
    return np.concatenate([going_on_NK, going_on_NK * (1.0 - going_on_NK)], axis=1)


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.9))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_decisions_do_not_depend_on_the_future(name: str, seed: int, share: float) -> None:
    """Two futures that agree on all that has happened by a step give the same commands up to that step."""
    swap_futures(name, seed, share)


@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.9))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_moves_do_not_depend_on_the_future(seed: int, share: float) -> None:
    """The same where moves cost nothing, so that there are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive, "MOVE_ABOVE", 0.0)
        swap_futures("predictive", seed, share, move_share=100.0, block=4, prefill_tokens=0.0)


@pytest.mark.parametrize("name", POLICIES)
def test_everything_ends_and_is_granted_once_per_turn(name: str) -> None:
    turns_of = lengths(3)
    host = clockwork(name, turns_of)
    host.run()
    granted = [command.traj for _, command in host.log if isinstance(command, Grant)]
    assert len(granted) == sum(map(len, turns_of.values()))
    assert not host.scheduler.state.trajectories


@pytest.mark.parametrize("name", POLICIES)
def test_same_events_same_commands(name: str) -> None:
    first, second = clockwork(name, lengths(5)), clockwork(name, lengths(5))
    assert first.run() == second.run() and first.log == second.log


def test_unknown_policy_and_tunable_are_named() -> None:
    with pytest.raises(ValueError, match="no policy is called 'best'; there are predictive, static"):
        make_policy("best")
    with pytest.raises(ValueError, match=r"policy 'static': .*colour"):
        make_policy("static", colour=1)


def test_static_deals_groups_out_and_never_moves_them() -> None:
    made = begin("static")
    assert submit(made, *TEN) == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    for traj in TEN[:4]:
        assert again(made, traj) == made.state.trajectories[traj].home


def test_round_robin_takes_turns_and_keeps_a_trajectory_unless_told_otherwise() -> None:
    made = begin("round_robin")
    assert submit(made, *TEN[:4]) == [0, 1, 0, 1] and again(made, "g0/0") == 0
    loose = begin("round_robin", sticky=False)
    assert submit(loose, *TEN[:3]) == [0, 1, 0] and again(loose, "g0/0") == 1


def test_routers_queue_at_their_bound_and_serve_the_oldest_first() -> None:
    made = begin("round_robin", max_running=2)
    assert submit(made, *TEN[:6]) == [0, 1, 0, 1, None, None]
    assert where(made.handle(TurnEnded(traj="g0/1", new_tokens=1)), "g2/1") == 1
    assert where(made.handle(Left(traj="g0/0")), "g2/0") == 0


def test_queue_of_a_lost_replica_is_routed_anew() -> None:
    made = begin("static", max_running=1)
    assert submit(made, *TEN[:4]) == [0, None, 1, None]
    assert made.handle(ReplicaDown(replica=1)) == []
    made.handle(Left(traj="g0/0"))
    assert {traj: t.home for traj, t in made.state.trajectories.items() if t.home is not None} == {"g0/1": 0}
    assert where(made.handle(Left(traj="g0/1")), "g1/1") == 0


def test_thunder_pauses_the_shortest_at_tools_and_restores_what_waits() -> None:
    made = begin("thunder", (1000,), buffer_tokens=10)
    assert submit(made, "a/0", "b/0", "c/0", "d/0", prompt=200) == [0, 0, 0, 0]
    made.handle(TurnEnded(traj="a/0", new_tokens=30))
    made.handle(TurnEnded(traj="b/0", new_tokens=90))
    found = made.handle(LoadSeen(replica=0, used_tokens=1050, running=2, waiting=0))
    assert found == [Drop(traj="a/0", replica=0)]
    assert where(made.handle(TurnReady(traj="a/0", context_tokens=240)), "a/0") is None
    made.handle(Left(traj="b/0"))
    found = made.handle(LoadSeen(replica=0, used_tokens=500, running=2, waiting=0))
    assert found == [Grant(traj="a/0", replica=0)]


def test_thunder_marks_a_running_turn_and_pauses_it_when_it_ends() -> None:
    made = begin("thunder", (1000,), buffer_tokens=10)
    submit(made, "a/0", "b/0", prompt=400)
    assert made.handle(LoadSeen(replica=0, used_tokens=1200, running=2, waiting=0)) == []
    found = made.handle(TurnEnded(traj="a/0", new_tokens=50))
    assert found == [Drop(traj="a/0", replica=0)]


# ---- ours ----


def test_predictive_balances_and_stays_home() -> None:
    made = begin("predictive", (10**5, 10**5), block=1)
    homes = submit(made, *TEN)
    assert sorted(map(str, homes)) == ["0"] * 5 + ["1"] * 5
    assert all(again(made, traj) == home for traj, home in zip(TEN, homes, strict=True))


@pytest.mark.parametrize(("pool", "most", "block"), [(950, 8, 4), (1100, 8, 2), (1100, 1, 1), (10**5, 8, 1)])
def test_siblings_are_gathered_as_far_as_all_then_fit_at_once(pool: int, most: int, block: int) -> None:
    names = [f"g{k // 8}/{k % 8}" for k in range(16)]
    made = begin("predictive", (pool, pool), block=most, safety=0.0, buffer=0.0)
    homes = submit(made, *names, prompt=100, together=True)
    runs = [len(list(run)) for _, run in itertools.groupby(homes[:8])]
    assert None not in homes[:8] and set(runs) == {block}, homes


@given(seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_candidates_are_those_of_a_plain_sort(seed: int) -> None:
    """The order in which replicas are tried: home, begun blocks, the rest, each by load, then by age."""
    asked: list[int] = []

    def plain(self: predictive.Predictive, turn: TrajectoryEntry, among: list[int], now: ScheduleState) -> list[int]:
        def key(replica: int) -> tuple[bool, bool, float]:
            siblings = self._occupancy[replica].groups.get(turn.group, 0)
            return replica != turn.home, siblings % block == 0, self._loads[replica]

        block = self._block(turn, now)
        asked.append(block)
        return sorted((replica for replica in self._occupancy if replica in among), key=key)

    turns_of = lengths(seed)
    ours = clockwork("predictive", turns_of, (700, 600, 900), safety=0.0)
    ours.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive.Predictive, "_candidates", plain)
        sorted_ = clockwork("predictive", turns_of, (700, 600, 900), safety=0.0)
        sorted_.run()
    assert sorted_.log == ours.log and asked


@given(seed=st.integers(0, 10**6), pool=st.integers(450, 900))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_what_is_remembered_changes_no_decision(seed: int, pool: int) -> None:
    """That nobody fits, and the step at which a pool is over: each saves a look, and none finds another."""
    turns_of = lengths(seed)
    ours = clockwork("predictive", turns_of, (pool, 600, 900))
    ours.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive.Forecast, "exceeds", lambda *args: False)
        patch.setattr(predictive.Predictive, "_nobody", Nothing())
        forgetful = clockwork("predictive", turns_of, (pool, 600, 900))
        forgetful.run()
    assert forgetful.log == ours.log


class Nothing:
    """In the place of an attribute: it is None, whatever it is set to."""

    def __get__(self, instance: object, owner: type) -> None:
        return None

    def __set__(self, instance: object, value: object) -> None:
        pass


def finished(made: Scheduler, group: str, lengths_: list[int]) -> None:
    """Siblings come, write so much each and leave: the group's length is known."""
    for k, length in enumerate(lengths_):
        traj = f"{group}/done{k}"
        submit(made, traj)
        made.handle(TurnEnded(traj=traj, new_tokens=length))
        made.handle(Left(traj=traj))


def backfilled(backfill: float) -> tuple[int, int]:
    """How many of a long and of a short group are admitted where the pool is half full; both wait."""
    made = begin("predictive", (10**5,), backfill=backfill, longest_first=True)
    for name, length in (("long", 390), ("short", 10)):
        made.handle(Submitted(traj=f"{name}/stays", group=name, stage="s", prompt_tokens=20, max_tokens=400))
        finished(made, name, [length] * 30)
    made.handle(ReplicaUp(replica=1, kv_tokens=2000))
    made.handle(ReplicaDown(replica=0))
    submit(made, *[f"{name}/{k}" for k in range(40) for name in ("long", "short")])
    started = [t.traj for t in made.state.trajectories.values() if t.home is not None]
    return sum(t.startswith("long") for t in started), sum(t.startswith("short") for t in started)


def test_shorter_ones_go_ahead_of_a_head_that_fits_nowhere_up_to_their_share() -> None:
    long, short = backfilled(0.0)
    assert 0 < long < 40
    more_long, more_short = backfilled(1e9)
    assert more_short > short and more_long <= long
    some = [backfilled(share)[1] for share in (0.0, 0.02, 1e9)]
    assert some == sorted(some) and some[0] < some[2]


def moved(move_share: float) -> int | None:
    """Twelve long ones on one replica, none on the other, which was down: where the next turn goes."""
    made = begin("predictive", (10**6,), move_share=move_share)
    names = [f"g{k}/0" for k in range(12)]
    assert set(submit(made, *names, prompt=20, limit=12_000)) == {0}
    made.handle(ReplicaUp(replica=1, kv_tokens=10**6))
    return again(made, names[0], new=500)


def test_moves_go_where_less_work_is_left_within_their_share() -> None:
    assert moved(2.0) == 1
    assert moved(0.5) == 0, "520 tokens computed anew are more than half of 500 generated ones"
    assert moved(0.0) == 0


@pytest.mark.parametrize(("limit", "home"), [(12_000, 1), (1000, 0)])
def test_nothing_moves_for_less_than_it_costs(limit: int, home: int) -> None:
    """A prompt of 20,000 tokens is computed anew for 11,500 tokens that may come, not for 500."""
    made = begin("predictive", (10**6,), move_share=2.0)
    names = [f"g{k}/0" for k in range(12)]
    submit(made, *names, prompt=20_000, limit=limit)
    made.handle(ReplicaUp(replica=1, kv_tokens=10**6))
    made.policy._generated = 10**6  # type: ignore[attr-defined]
    assert again(made, names[0], new=500) == home


@pytest.mark.parametrize(("others", "above", "home"), [(59, 0.0, 0), (50, 0.0, 1), (50, 1.5, 0)])
def test_a_move_is_for_more_than_chance_and_never_makes_another_the_last(
    others: int, above: float, home: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty live on replica 0; where fifty live on replica 1, chance may make up for the difference."""
    monkeypatch.setattr(predictive, "MOVE_ABOVE", above)
    made = begin("predictive", (10**6, 10**6), move_share=2.0)
    trajs = [f"g{k}/0" for k in range(120)]
    assert submit(made, *trajs, limit=12_000) == [0, 1] * 60
    for traj in trajs[2 * others + 1 :: 2]:
        made.handle(Left(traj=traj, finished=False))
    for replica in sorted(made.policy._stale):  # type: ignore[attr-defined]
        made.policy._forecast(replica)  # type: ignore[attr-defined]
    made.policy._generated = 10**6  # type: ignore[attr-defined]
    assert again(made, trajs[0], new=500) == home


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from(["wait", "lose", "start", "leave", "rank"])), max_size=60
    )
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_queue_forgets_nobody(steps: list[tuple[int, str]]) -> None:
    """Whoever waits can be drawn from the heads, in some order, until none is left; and nobody else."""

    class Lengths(LengthPredictor):
        drawn = 0

        def group_length(self, group: str, stage: str) -> float:
            self.drawn += 1
            return float(self.drawn // 5 % 3 * 300)

        def level(self, expected: float, stage: str) -> int:
            return int(expected) // 100

    turns = {
        k: TrajectoryEntry(
            traj=f"t{k}",
            group=f"g{k % 3}",
            stage="s",
            order=k,
            prompt_tokens=1,
            max_tokens=9,
            context_tokens=1,
            turn_context_tokens=1,
        )
        for k in range(12)
    }
    queue, now = WaitingQueue(Lengths()), ScheduleState()
    for who, what in steps:
        turn = turns[who]
        if what in ("wait", "lose") and turn.traj not in now.ready:
            now.ready[turn.traj] = turn
            queue.add_new(turn) if what == "wait" else queue.add_lost(turn.traj)
        elif what == "start" and turn.traj in now.ready:
            del now.ready[turn.traj]
            queue.start(turn)
        elif what == "leave":
            now.ready.pop(turn.traj, None)
            queue.discard(turn)
        elif what == "rank":
            queue.rank(turn.group)
        waiting = sum(len(g.trajs) for g in queue._groups.values())
        assert queue.num_new == waiting
        assert bool(now.ready) == (next(queue.heads(now), None) is not None)
    drawn = set()
    while (turn := next(queue.heads(now), None)) is not None:
        drawn.add(turn.traj)
        queue.start(turn)
        assert now.ready.pop(turn.traj, None) is not None
    assert not now.ready and len(drawn) <= 12


def test_predictive_admits_more_than_the_worst_case_and_less_than_everything() -> None:
    names = [f"g{k}/0" for k in range(200)]
    admitted = [h for h in submit(begin("predictive", (10_000,)), *names) if h is not None]
    assert 10_000 / (20 + 400) < len(admitted) < 10_000 / 20 / 2


def test_predictive_gives_lost_ones_priority_and_takes_the_longest_group_first() -> None:
    made = begin("predictive", (4000,))
    names = [f"g{k % 10}/{k // 10}" for k in range(100)]
    submit(made, *names)
    started = [t for t in names if made.state.trajectories[t].home is not None]
    assert {f"g{k}/0" for k in range(10)} <= set(started), "one sibling of each group first"
    long, short = "g3/0", "g4/0"
    made.handle(TurnEnded(traj=short, new_tokens=2))
    made.handle(Left(traj=short))
    made.handle(TurnEnded(traj=long, new_tokens=399))
    found = made.handle(Left(traj=long)) + made.handle(ReplicaUp(replica=1, kv_tokens=2000))
    granted = [c.traj for c in found if isinstance(c, Grant)]
    assert granted and granted[0].startswith("g3/")


def ahead_of(predictor: LengthPredictor, curve: int, at: int = 0) -> Floats:
    return predictor.going_on_K(curve * NUM_BINS + at)


def ended(predictor: LengthPredictor, traj: str, group: str, length: int, *, finished: bool = True) -> None:
    """Feed a trajectory of one turn."""
    predictor.add(traj, group, "s", 6400)
    predictor.turn_starts(traj, 0, 0)
    predictor.leave(traj, length, finished=finished)


def exponential(predictor: LengthPredictor, count: int, mean: float) -> None:
    rng = np.random.default_rng(0)
    for k in range(count):
        ended(predictor, f"x{k}", f"gx{k}", int(min(6400, rng.exponential(mean))))


def test_predictor_learns_the_survival_curve() -> None:
    predictor = LengthPredictor()
    exponential(predictor, 4000, 1000.0)
    predictor.add("y", "gy", "s", 6400)
    curve = predictor.turn_starts("y", 0, 0)
    going_on_K = ahead_of(predictor, curve)
    width = predictor.bin_tokens
    for k in (5, 10, 20, 40):
        assert going_on_K[k] == pytest.approx(np.exp(-k * width / 1000.0), abs=0.04)
    # Memoryless: the same ahead of one that has come far.
    assert ahead_of(predictor, curve, 20)[10] == pytest.approx(np.exp(-10 * width / 1000.0), abs=0.06)


def test_those_that_still_run_count_as_long_as_they_are() -> None:
    """Half end at 500, half run on beyond 3000: the curve must not forget the second half."""
    predictor = LengthPredictor()
    for k in range(400):
        if k % 2:
            ended(predictor, f"x{k}", f"g{k}", 500)
            continue
        predictor.add(f"x{k}", f"g{k}", "s", 6400)
        predictor.turn_starts(f"x{k}", 0, 0)
        predictor._advance(predictor._progress[f"x{k}"], 3000)
    predictor.add("y", "gy", "s", 6400)
    going_on_K = ahead_of(predictor, predictor.turn_starts("y", 0, 0))
    assert going_on_K[1500 // predictor.bin_tokens] == pytest.approx(0.5, abs=0.06)


def test_failed_trajectories_say_nothing() -> None:
    predictor = LengthPredictor()
    exponential(predictor, 500, 2000.0)
    predictor._make_tables()
    before = ahead_of(predictor, 0)
    for k in range(500):
        ended(predictor, f"z{k}", f"gz{k}", 10, finished=False)
    predictor._make_tables()
    assert np.abs(ahead_of(predictor, 0) - before).max() < 0.05


def test_siblings_tell_of_each_other() -> None:
    predictor = LengthPredictor()
    exponential(predictor, 300, 1500.0)
    for group, length in (("short", 200), ("long", 5000)):
        for k in range(4):
            predictor.add(f"{group}{k}", group, "s", 6400)
        for k in range(3):
            predictor.turn_starts(f"{group}{k}", 0, 0)
            predictor.leave(f"{group}{k}", length, finished=True)
    assert predictor.group_length("long", "s") > 3 * predictor.group_length("short", "s")
    ahead = {group: ahead_of(predictor, predictor.turn_starts(f"{group}3", 0, 0)).sum() for group in ("short", "long")}
    assert ahead["long"] > 2 * ahead["short"]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["put", "end", "discard"]), st.integers(1, 300)), max_size=60
    )
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_occupancy_table_agrees_with_a_dictionary(steps: list[tuple[int, str, int]]) -> None:
    occupancy, known = Occupancy(), dict[str, tuple[int, int | None]]()
    clock = 0
    for who, what, number in steps:
        traj, group = f"t{who}", f"g{who % 3}"
        if what == "put":
            running = number % 2 == 0
            occupancy.put(traj, group, prompt_tokens=100, curve=0, length=number, running=running)
            known[traj] = (number, clock if running else None)
        elif what == "end" and traj in known and known[traj][1] is not None:
            occupancy.turn_ended(traj, number)
            clock = max(clock, (known[traj][1] or 0) + number)
        elif what == "discard":
            occupancy.discard(traj, group, prompt_tokens=100)
            known.pop(traj, None)
        expected = {t: n if since is None else n + clock - since for t, (n, since) in known.items()}
        assert dict(occupancy.lengths()) == expected and len(occupancy) == len(known)
        assert occupancy.tokens_now(7) == sum(expected.values()) + occupancy.prompt_tokens + 7 * len(known)
        groups = {f"g{int(t[1:]) % 3}" for t in known}
        assert occupancy.prompt_tokens == 100 * len(groups)
        mean_K = occupancy.forecast(lambda c: with_variance(np.ones((len(c), NUM_BINS))), 10, 0, 0).mean_K
        assert mean_K[0] == sum(expected.values()) + 100 * len(groups)
        assert mean_K[3] - mean_K[0] == 30 * len(known)


def test_peak_of_the_sum_is_not_the_sum_of_the_peaks() -> None:
    """One about to end and one that begins: at no step are both long."""
    ahead_K = np.arange(NUM_BINS)
    occupancy = Occupancy()
    occupancy.put("old", "a", prompt_tokens=0, curve=0, length=900, running=True)
    occupancy.put("new", "b", prompt_tokens=0, curve=0, length=0, running=True)

    def chances(cells: Ints) -> Floats:
        return with_variance(((cells % NUM_BINS)[:, None] + ahead_K < 10).astype(float))

    forecast = occupancy.forecast(chances, 100, 0, 0)
    assert forecast.peak(2.0) == 900.0 < 900.0 + 900.0
    assert list(forecast.mean_K[:3]) == [900.0, 100.0, 200.0]


def test_a_load_counts_what_is_read_and_the_steps_of_whoever_is_there() -> None:
    """Two of 100 tokens and a prompt of 30 for 5 bins of 10 steps, rows of 7 tokens."""
    occupancy = Occupancy()
    for k in range(2):
        occupancy.put(f"t{k}", "g", prompt_tokens=30, curve=0, length=100, running=True)
    there_K = (np.arange(NUM_BINS) < 5).astype(float)
    forecast = occupancy.forecast(lambda c: with_variance(np.tile(there_K, (len(c), 1))), 10, 3, 7)
    read = 2 * sum(100 + 30 + 7 + 10 * k for k in range(5)) * 10
    busy = 5 * (1 - np.exp(-2)) * 10
    assert forecast.load(0.0) == pytest.approx(read)
    assert forecast.load(1000.0) == pytest.approx(read + 1000.0 * busy)


def test_uncertainty_raises_the_peak() -> None:
    half_K = np.full(NUM_BINS, 0.5)
    half_K[0] = 1.0
    occupancy = Occupancy()
    for k in range(4):
        occupancy.put(f"t{k}", f"g{k}", prompt_tokens=0, curve=0, length=100, running=True)
    forecast = occupancy.forecast(lambda c: with_variance(np.tile(half_K, (len(c), 1))), 1, 0, 0)
    assert forecast.mean_K[1] == 4 * 0.5 * 101
    assert forecast.variance_K[1] == pytest.approx(4 * 0.25 * 101**2)
    assert forecast.peak(2.0) > forecast.peak(1.0) > forecast.peak(0.0)
