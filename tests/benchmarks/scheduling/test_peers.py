"""The peers of our policy: what each decides, and that none can see the future or beat the bound."""

import functools
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.scheduling.clockwork import TEN, again, begin, clockwork, lengths, submit, swap_futures, where

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from scheduling.peers import PEERS, POLICIES  # noqa: E402

from rocstar.engine.scheduling import policies  # noqa: E402
from rocstar.engine.scheduling.events import Grant, Left, LoadSeen, Preempted, ReplicaDown, TurnEnded  # noqa: E402
from rocstar.engine.sim.cli import main  # noqa: E402
from rocstar.engine.sim.cost import MI300X_14B, Cluster, ReplicaModel  # noqa: E402
from rocstar.engine.sim.simulate import simulate  # noqa: E402
from rocstar.engine.sim.workload import generate  # noqa: E402

begin_peer = functools.partial(begin, policies=POLICIES)
fly_peer = functools.partial(clockwork, policies=POLICIES)


def test_recipes_have_other_policies() -> None:
    assert not PEERS.keys() & policies.POLICIES.keys()


@pytest.mark.parametrize("name", PEERS)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.9))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_decisions_do_not_depend_on_the_future(name: str, seed: int, share: float) -> None:
    swap_futures(name, seed, share, policies=POLICIES)


@pytest.mark.parametrize("name", PEERS)
def test_everything_ends_and_is_granted_once_per_turn(name: str) -> None:
    turns_of = lengths(3)
    host, again_ = fly_peer(name, turns_of), fly_peer(name, turns_of)
    host.run()
    again_.run()
    granted = [command.traj for _, command in host.log if isinstance(command, Grant)]
    assert len(granted) == sum(map(len, turns_of.values()))
    assert not host.scheduler.state.trajectories and host.log == again_.log


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("workload", ["paper", "short-tail", "tool-heavy"])
def test_no_peer_is_shorter_than_the_bound(name: str, workload: str) -> None:
    work = generate(workload, tasks=2, siblings=16, seed=7)
    for kv_tokens in (50_000, 800_000):
        cluster = Cluster(model=ReplicaModel(kv_tokens=kv_tokens, cost=MI300X_14B), replicas=2)
        found, _ = simulate(work, cluster, name, policies=POLICIES)
        assert found.ratio >= 1


def test_the_verb_simulates_them(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--workload", "paper", "--tasks", "2", "--siblings", "4", "--replicas", "2", "--kv-tokens", "40000"]
    assert main([*small, "--peers", str(BENCHMARKS / "scheduling" / "peers.py")]) == 0
    words = capsys.readouterr().out.split()
    assert all(name in words for name in POLICIES)


def test_least_inflight_looks_at_what_runs() -> None:
    made = begin_peer("least_inflight")
    assert submit(made, *TEN[:4]) == [0, 1, 0, 1]
    made.handle(TurnEnded(traj="g0/1", new_tokens=1))
    made.handle(TurnEnded(traj="g1/1", new_tokens=1))
    assert submit(made, *TEN[4:6]) == [1, 1]


def test_sticky_hash_depends_on_names_alone_and_moves_only_what_it_must() -> None:
    names = [f"g{k}/0" for k in range(60)]
    before = dict(zip(names, submit(begin_peer("sticky", (10**6,) * 4), *names), strict=True))
    assert before == dict(zip(names, submit(begin_peer("sticky", (10**6,) * 4), *names), strict=True))
    assert set(before.values()) == {0, 1, 2, 3}
    made = begin_peer("sticky", (10**6,) * 4)
    made.handle(ReplicaDown(replica=2))
    after = dict(zip(names, submit(made, *names), strict=True))
    assert all(after[name] == home for name, home in before.items() if home != 2)
    by_group = submit(begin_peer("sticky", (10**6,) * 4, by_group=True), *TEN)
    assert by_group[::2] == by_group[1::2]


def test_reserve_holds_prompt_and_limit_over_all_turns() -> None:
    made = begin_peer("reserve")
    assert submit(made, *TEN[:6]) == [1, 0, 1, 0, None, None]
    assert again(made, "g0/0") == 1
    assert made.handle(TurnEnded(traj="g0/1", new_tokens=1)) == []
    assert where(made.handle(Left(traj="g0/1")), "g2/0") == 0
    assert submit(begin_peer("reserve", budget_coef=0.5), *TEN[:9]).count(None) == 1


def test_aimd_grows_while_clear_trims_when_full_and_cuts_on_preemption() -> None:
    made = begin_peer("aimd", initial=2)
    aimd = made.policy
    assert submit(made, *TEN) == [0, 1, 0, 1, *[None] * 6]

    def report(used: int) -> None:
        for replica in (0, 1):
            made.handle(LoadSeen(replica=replica, used_tokens=used, running=2, waiting=0))

    report(100)
    made.handle(Left(traj="g0/0"))
    cap = aimd._cap  # type: ignore[attr-defined]
    assert 4.0 < cap < 4.8
    report(900)
    assert aimd._cap == 3.0  # type: ignore[attr-defined]
    made.handle(Preempted(traj="g0/1", context_tokens=20))
    report(500)
    assert aimd._cap == 3.0 and aimd._draining  # type: ignore[attr-defined]
    report(500)
    assert made.handle(Left(traj="g0/1")) == []
