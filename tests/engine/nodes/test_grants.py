"""Grants by predicted-free KV: nothing is lost, nothing is twice, and the emptier node is the next."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocstar.engine.nodes.grants import MAX_AWAY, Grants
from tests.fakes.invariants import check_grants

OTHERS = ("1", "2")
LIMIT = 100


class Machine(RuleBasedStateMachine):
    """Random events; what was submitted is compared with what ended."""

    @initialize(max_groups=st.none() | st.integers(1, 3), home=st.integers(1, 5000))
    def begin(self, max_groups: int | None, home: int) -> None:
        self.grants = Grants("0", home_tokens=home, max_groups=max_groups)
        self.submitted = 0
        self.left: set[str] = set()
        self.ever_away: dict[str, int] = {}

    def granted(self) -> list[str]:
        return [key for key, entry in self.grants.groups.items() if entry.node is not None]

    @rule(size=st.integers(1, 20), away=st.booleans())
    def submit(self, size: int, away: bool) -> None:
        key = f"g{self.submitted}"
        self.submitted += 1
        self.left.add(key)
        self.grants.submit(key, size=size, limit_tokens=LIMIT, away=away)
        self.grant()

    @rule(name=st.sampled_from(OTHERS), total=st.integers(1, 5000))
    def up(self, name: str, total: int) -> None:
        self.grants.up(name, total)
        self.grant()

    @precondition(lambda self: len(self.grants.nodes) > 1)
    @rule(data=st.data())
    def down(self, data: st.DataObject) -> None:
        """A silent node: its groups fail too, all or some of them."""
        name = data.draw(st.sampled_from(sorted(self.grants.nodes.keys() - {"0"})))
        self.grants.down(name)
        for key in list(self.grants.nodes[name].groups):
            if data.draw(st.booleans()):
                self.grants.failed(key)
        self.grant()

    @rule(data=st.data(), used=st.integers(0, 5000))
    def seen(self, data: st.DataObject, used: int) -> None:
        self.grants.seen(data.draw(st.sampled_from(sorted(self.grants.nodes))), used)
        self.grant()

    @precondition(lambda self: self.granted())
    @rule(data=st.data(), tokens=st.lists(st.integers(1, 150), max_size=4))
    def ended(self, data: st.DataObject, tokens: list[int]) -> None:
        key = data.draw(st.sampled_from(self.granted()))
        self.left.remove(key)  # once
        self.grants.ended(key, tokens)
        self.grant()

    @precondition(lambda self: any(self.grants.groups[key].node != "0" for key in self.granted()))
    @rule(data=st.data(), home_only=st.booleans())
    def failed(self, data: st.DataObject, home_only: bool) -> None:
        away = [key for key in self.granted() if self.grants.groups[key].node != "0"]
        self.grants.failed(data.draw(st.sampled_from(away)), home_only=home_only)
        self.grant()

    @precondition(lambda self: self.grants.groups)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.grants.groups)))
        self.left.remove(key)
        self.grants.withdraw(key)
        self.grant()

    def grant(self) -> None:
        before = {key: entry.node for key, entry in self.grants.groups.items()}
        made = self.grants.grants()
        assert len({key for key, _ in made}) == len(made)
        for key, name in made:
            entry = self.grants.groups[key]
            assert before[key] is None and entry.node == name
            assert self.grants.nodes[name].is_up and (name == "0" or entry.away)
            self.ever_away[key] = self.ever_away.get(key, 0) + (name != "0")

    @invariant()
    def nothing_is_lost_or_twice(self) -> None:
        if not hasattr(self, "grants"):
            return
        assert self.grants.groups.keys() == self.left
        check_grants(self.grants)

    @invariant()
    def a_group_that_keeps_failing_comes_home(self) -> None:
        if hasattr(self, "grants"):
            assert all(count <= MAX_AWAY for count in self.ever_away.values())

    @invariant()
    def the_first_that_waits_fits_nowhere(self) -> None:
        if not hasattr(self, "grants"):
            return
        grants = self.grants
        waiting = [entry for entry in grants.groups.values() if entry.node is None and entry.away]
        for name, node in grants.nodes.items() if waiting else ():
            need = waiting[0].size * grants.lengths.mean(LIMIT)
            full = grants._max_groups is not None and len(node.groups) >= grants._max_groups
            assert not node.is_up or full or (node.groups and need > grants.free_tokens(name))


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestGrants = Machine.TestCase


def grants_of(*totals: int, max_groups: int | None = None) -> Grants:
    grants = Grants("0", home_tokens=totals[0], max_groups=max_groups)
    for name, total in enumerate(totals[1:], 1):
        grants.up(str(name), total)
    return grants


def submit(grants: Grants, count: int, *, size: int = 4) -> list[str]:
    for _ in range(count):
        grants.submit(f"g{len(grants.groups)}", size=size, limit_tokens=LIMIT)
    return [node for _, node in grants.grants()]


def test_equal_nodes_take_turns() -> None:
    assert submit(grants_of(10_000, 10_000), 6) == ["0", "1", "0", "1", "0", "1"]


def test_a_larger_cache_gets_more() -> None:
    assert submit(grants_of(1200, 2400), 6) == ["1", "1", "1", "0", "1", "0"]


def test_what_does_not_fit_waits_until_a_group_ends() -> None:
    grants = grants_of(800, 400)
    assert submit(grants, 5) == ["0", "1", "0"]
    grants.ended("g1", [50] * 4)
    # Three trajectories of half the limit say little yet: the prediction fell to 83 tokens.
    assert grants.lengths.mean(LIMIT) == pytest.approx(250 / 3)
    assert grants.grants() == [("g3", "1")]


def test_shorter_lengths_let_more_in() -> None:
    grants = grants_of(800)
    assert submit(grants, 4) == ["0", "0"]
    grants.lengths.add(LIMIT, [20] * 1000)
    assert [key for key, _ in grants.grants()] == ["g2", "g3"]


def test_a_report_counts_where_it_says_more_than_the_prediction() -> None:
    grants = grants_of(1000, 1000)
    grants.seen("0", 700)
    assert submit(grants, 1) == ["1"]
    grants.seen("1", 750)
    assert submit(grants, 1) == ["0"], "it has none"
    assert submit(grants, 1) == []


def test_a_group_too_large_for_all_goes_where_nothing_is() -> None:
    grants = grants_of(100, 100)
    assert submit(grants, 3) == ["0", "1"]


def test_one_at_a_time_where_asked() -> None:
    grants = grants_of(10_000, 10_000, max_groups=1)
    assert submit(grants, 3) == ["0", "1"]
    grants.ended("g0", [])
    assert grants.grants() == [("g2", "0")]


def test_a_failed_group_keeps_its_place() -> None:
    grants = grants_of(400, 400)
    assert submit(grants, 4) == ["0", "1"]
    grants.failed("g1")
    grants.down("1")
    assert grants.grants() == []
    grants.ended("g0", [])
    assert grants.grants() == [("g1", "0")]


def test_events_that_cannot_be_are_refused() -> None:
    grants = grants_of(100)
    submit(grants, 1)
    for event in (
        lambda: grants.submit("g0", size=1, limit_tokens=1),
        lambda: grants.down("0"),
        lambda: grants.ended("g9", []),
        lambda: Grants("0", home_tokens=1, max_groups=0),
    ):
        with pytest.raises(ValueError):
            event()


def test_a_node_may_be_promised_more_than_it_holds() -> None:
    """Trajectories on their way take less than they will have grown to."""
    for fill, expected in ((1.0, 1), (2.0, 2)):
        grants = Grants("0", home_tokens=100, fill=fill)
        for k in range(4):
            grants.submit(str(k), size=10, limit_tokens=10)
        assert len(grants.grants()) == expected
