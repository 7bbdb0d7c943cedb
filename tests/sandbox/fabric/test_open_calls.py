"""Exactly one outcome per call, whatever is delivered twice, late, out of order or not at all."""

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocstar.sandbox.fabric.open_calls import CallState, Effect, OpenCall, OpenCalls
from rocstar.sandbox.fabric.owner_queue import CallWindow, MeanCallTime
from rocstar.sandbox.fabric.wire import Answer, Outcome
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import ok


def crash(*, retryable: bool = True, kind: str = "zygote_died") -> SandboxError:
    return SandboxError("planned", kind=kind, retryable=retryable)


def quick(most: int) -> CallWindow:
    """Of calls that take no time for so many workers."""
    return CallWindow(capacity=1 << 20, most=most)


class LedgerMachine(RuleBasedStateMachine):
    """Redis and workers at their worst: entries may be delivered any number of times, also after they were
    lost, after their calls were sent again, and after their caller has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = OpenCalls(max_attempts=3, max_losses=4)
        self.outcomes: dict[int, list[Outcome]] = {}
        self.dropped: set[int] = set()
        self.entries: dict[str, list[int]] = {}
        self.sending: list[list[int]] = []
        self.parked: set[int] = set()

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)

    @rule(
        flavour=st.sampled_from(["stdlib", "numeric"]),
        owner=st.sampled_from(["", "a", "b"]),
        batch=st.integers(0, 2),
        size=st.integers(1, 5),
    )
    def open(self, flavour: str, owner: str, batch: int, size: int) -> None:
        for _ in range(size):
            outcomes: list[Outcome] = []
            call = self.ledger.open(
                ExecRequest(code="x" * self.rng.randrange(50), flavour=flavour, owner=owner, weight=1 + batch),
                outcomes.append,
                batch=batch,
                entry_calls=self.rng.choice([1, 2, 4]),
            )
            self.outcomes[call.id] = outcomes

    @precondition(lambda self: self.ledger.next_key is not None)
    @rule(reply=st.sampled_from(["sent", "unsent", "sent but the reply was lost"]))
    def send(self, reply: str) -> None:
        calls = self.ledger.take(200)
        assert 1 <= len(calls) <= min(call.entry_calls for call in calls)
        assert len({(call.batch, call.key, call.request.owner) for call in calls}) == 1
        assert len(calls) == 1 or sum(call.weight for call in calls) <= 200
        ref = f"{calls[0].request.flavour}/{len(self.entries)}-0"
        if reply != "unsent":
            self.entries[ref] = [call.id for call in calls]
        if self.rng.random() < 0.3 and reply != "unsent":  # a worker is quicker than Redis's reply
            self.answer_from(ref)
        if reply == "sent":
            self.ledger.sent(calls, ref)
        self.ledger.unsent(calls)

    @precondition(lambda self: self.entries)
    @rule()
    def deliver(self) -> None:
        self.answer_from(self.rng.choice(list(self.entries)))

    def answer_from(self, ref: str) -> None:
        for call_id in self.entries[ref]:
            outcome = self.rng.choice([ok(ref), ok(ref), crash(), crash(retryable=False), None])
            if outcome is not None:
                self.answer(Answer(ref=ref, call_id=call_id, outcome=outcome))

    def answer(self, answer: Answer) -> None:
        before = {call_id: len(outcomes) for call_id, outcomes in self.outcomes.items()}
        for effect, call_id in self.ledger.answer(answer):
            settled = len(self.outcomes[call_id]) - before[call_id]
            assert settled == (effect is Effect.SETTLED)
            if effect is Effect.RETRY:
                self.parked.add(call_id)

    @precondition(lambda self: self.entries)
    @rule(retryable=st.booleans())
    def poison(self, retryable: bool) -> None:
        ref = self.rng.choice(list(self.entries))
        self.answer(Answer(ref=ref, call_id=None, outcome=crash(retryable=retryable, kind="fabric")))

    @precondition(lambda self: self.ledger.entries)
    @rule()
    def lose(self) -> None:
        self.ledger.lost(self.rng.choice(list(self.ledger.entries)))

    @rule()
    def lose_what_is_not_there(self) -> None:
        assert self.ledger.lost("stdlib/never-0") == 0

    @precondition(lambda self: self.parked)
    @rule()
    def requeue(self) -> None:
        self.ledger.requeue(self.parked.pop())

    @precondition(lambda self: self.outcomes)
    @rule()
    def drop(self) -> None:
        call_id = self.rng.choice(list(self.outcomes))
        if call_id in self.ledger.calls:
            self.dropped.add(call_id)
        self.ledger.drop([call_id])

    @precondition(lambda self: self.outcomes)
    @rule()
    def fail(self) -> None:
        self.ledger.fail([self.rng.choice(list(self.outcomes))], crash(kind="full"))

    @invariant()
    def every_call_is_open_settled_or_dropped(self) -> None:
        for call_id, outcomes in self.outcomes.items():
            states = (call_id in self.ledger.calls, len(outcomes) == 1, call_id in self.dropped)
            assert sum(states) == 1, (call_id, outcomes, states)
            assert len(outcomes) <= 1

    @invariant()
    def every_open_call_is_in_one_place(self) -> None:
        ledger = self.ledger
        in_entries = Counter(call_id for ids in ledger.entries.values() for call_id in ids)
        lanes = [lane for owners in ledger._outboxes.values() for lane in owners.values()]
        in_outbox = Counter(call_id for lane in lanes for call_id in lane)
        assert all(lanes)
        assert all(ids for ids in ledger.entries.values())
        for call in ledger.calls.values():
            assert in_entries[call.id] == (call.state is CallState.ENTRY)
            assert in_outbox[call.id] == (call.state is CallState.OUTBOX)
            assert call.state is not CallState.ENTRY or call.id in ledger.entries[call.ref]
        assert set(in_entries) | set(in_outbox) <= set(ledger.calls)

    @rule(
        capacity=st.sampled_from([1, 3, 1 << 20]),
        windows=st.dictionaries(st.sampled_from(["stdlib", "numeric"]), st.integers(0, 6)),
    )
    def workers_come_and_go(self, capacity: int, windows: dict[str, int]) -> None:
        self.ledger.windows = {flavour: CallWindow(capacity, most) for flavour, most in windows.items()}

    @invariant()
    def what_is_out_is_counted(self) -> None:
        calls = self.ledger.calls.values()
        for flavour, turns in self.ledger._queues.items():
            here = [call for call in calls if call.request.flavour == flavour]
            out = Counter(call.request.owner for call in here if call.state in (CallState.SENDING, CallState.ENTRY))
            assert turns.out == out.total()
            assert {name: one.out for name, one in turns.owners.items() if one.out} == out
            assert set(turns.owners) == {call.request.owner for call in here}
            assert turns._total_weight == sum(one.weight for one in turns.owners.values())

    @invariant()
    def only_open_batches_have_a_pace(self) -> None:
        batches = {(call.request.flavour, call.batch) for call in self.ledger.calls.values()}
        assert {key for key in self.ledger._call_times if key[1]} == {key for key in batches if key[1]}

    @invariant()
    def sums_are_right(self) -> None:
        calls = self.ledger.calls.values()
        assert self.ledger.weight == sum(call.weight for call in calls)
        assert self.ledger.flavours == Counter(call.request.flavour for call in calls)

    @invariant()
    def abandoned_entries_owe_nothing(self) -> None:
        assert not set(self.ledger.abandoned) & set(self.ledger.entries)

    def teardown(self) -> None:
        """When Redis and the workers behave again, nothing stays open."""
        self.ledger.windows = {}
        for call_id in list(self.ledger.calls):
            self.ledger.requeue(call_id)
        while calls := self.ledger.take(1 << 20):
            ref = f"stdlib/end{calls[0].id}-0"
            self.ledger.sent(calls, ref)
        for ref, ids in list(self.ledger.entries.items()):
            for call_id in sorted(ids):
                answers = self.ledger.answer(Answer(ref=ref, call_id=call_id, outcome=ok()))
                assert answers == [(Effect.SETTLED, call_id)]
        assert not self.ledger.calls
        self.every_call_is_open_settled_or_dropped()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def opened(ledger: OpenCalls, count: int = 1) -> tuple[list[int], list[Outcome]]:
    outcomes: list[Outcome] = []
    ids = [ledger.open(ExecRequest(code="x"), outcomes.append, batch=1).id for _ in range(count)]
    return ids, outcomes


def test_an_error_of_an_attempt_that_no_longer_counts_is_ignored_and_a_result_is_not() -> None:
    ledger = OpenCalls()
    (call_id,), outcomes = opened(ledger)
    ledger.sent(ledger.take(1 << 20), "stdlib/1-0")
    assert ledger.lost("stdlib/1-0") == 1
    ledger.sent(ledger.take(1 << 20), "stdlib/2-0")
    late = Answer(ref="stdlib/1-0", call_id=call_id, outcome=crash(retryable=False))
    assert ledger.answer(late) == [(Effect.LATE, call_id)]
    result = Answer(ref="stdlib/1-0", call_id=call_id, outcome=ok("first run"))
    assert ledger.answer(result) == [(Effect.SETTLED, call_id)]
    assert outcomes == [result.outcome]
    assert ledger.abandoned == ["stdlib/2-0"]


def test_an_entry_that_answers_all_its_calls_is_not_abandoned() -> None:
    ledger = OpenCalls()
    ids, _ = opened(ledger, 3)
    ledger.sent(ledger.take(1 << 20), "stdlib/1-0")
    for call_id in ids:
        ledger.answer(Answer(ref="stdlib/1-0", call_id=call_id, outcome=ok()))
    assert ledger.abandoned == []
    assert not ledger.entries


def test_an_entry_that_still_runs_a_dropped_call_is_abandoned_after_the_others() -> None:
    ledger = OpenCalls()
    ids, _ = opened(ledger, 3)
    ledger.sent(ledger.take(1 << 20), "stdlib/1-0")
    ledger.drop(ids[:1])
    for call_id in ids[1:]:
        assert ledger.abandoned == []
        ledger.answer(Answer(ref="stdlib/1-0", call_id=call_id, outcome=ok()))
    assert ledger.abandoned == ["stdlib/1-0"]


def test_attempts_and_losses_are_bounded() -> None:
    ledger = OpenCalls(max_attempts=2, max_losses=2)
    (call_id,), outcomes = opened(ledger)
    for number in range(2):
        ledger.sent(ledger.take(1 << 20), f"stdlib/{number}-0")
        ledger.answer(Answer(ref=f"stdlib/{number}-0", call_id=call_id, outcome=crash()))
        ledger.requeue(call_id)
    _, more = opened(ledger)
    for number in range(2, 4):
        ledger.sent(ledger.take(1 << 20), f"stdlib/{number}-0")
        ledger.lost(f"stdlib/{number}-0")
    kinds = [outcome.kind for outcome in outcomes + more if isinstance(outcome, SandboxError)]
    assert kinds == ["zygote_died", "fabric"]
    assert not ledger.calls


def test_a_deadline_is_not_tried_again() -> None:
    ledger = OpenCalls()
    (call_id,), outcomes = opened(ledger)
    ledger.sent(ledger.take(1 << 20), "stdlib/1-0")
    ledger.answer(Answer(ref="stdlib/1-0", call_id=call_id, outcome=crash(kind="deadline")))
    assert len(outcomes) == 1


def test_one_call_of_another_owner_waits_for_no_more_than_the_window() -> None:
    ledger = OpenCalls(windows={"stdlib": quick(4)})
    for _ in range(100):
        ledger.open(ExecRequest(code="x", flavour="stdlib", owner="many"), lambda _: None, batch=1)
    first = [ledger.take(1 << 20) for _ in range(3)]
    assert [len(calls) for calls in first] == [4, 0, 0]
    late = ledger.open(ExecRequest(code="x", flavour="stdlib", owner="other"), lambda _: None, batch=2)
    ledger.sent(first[0], "stdlib/1-0")
    ledger.answer(Answer(ref="stdlib/1-0", call_id=first[0][0].id, outcome=ok()))
    assert ledger.take(1 << 20) == [late]


def test_an_owner_that_has_nothing_in_redis_waits_for_nobodys_call_there() -> None:
    ledger = OpenCalls(windows={"stdlib": CallWindow(capacity=3, most=4)})

    def open_one(owner: str, batch: int) -> OpenCall:
        return ledger.open(ExecRequest(code="x", flavour="stdlib", owner=owner), lambda _: None, batch=batch)

    for _ in range(9):
        open_one("many", 1)
    assert [len(ledger.take(1 << 20)) for _ in range(2)] == [4, 0]
    late = [open_one("other", 2) for _ in range(2)]
    ledger.sent(ledger.take(1 << 20), "stdlib/2-0")
    assert [call.state for call in late] == [CallState.ENTRY, CallState.OUTBOX]  # now it has something
    open_one("third", 3)
    assert ledger.take(1 << 20) == []  # there is one place for three programs
    ledger.answer(Answer(ref="stdlib/2-0", call_id=late[0].id, outcome=ok()))
    assert [call.request.owner for call in ledger.take(1 << 20)] == ["third"]


class Answering:
    """One that answers the oldest entry whenever nothing more can be sent."""

    def __init__(self) -> None:
        self.ledger = OpenCalls(windows={"stdlib": CallWindow(capacity=3, most=64)})

    def open(self, count: int, *, batch: int) -> list[OpenCall]:
        request = ExecRequest(code="x", flavour="stdlib")
        return [self.ledger.open(request, lambda _: None, batch=batch) for _ in range(count)]

    def in_redis(self, batch: int) -> int:
        while calls := self.ledger.take(1 << 20):
            self.ledger.sent(calls, f"stdlib/{calls[0].id}-0")
        ids = [call_id for entry in self.ledger.entries.values() for call_id in entry]
        return sum(self.ledger.calls[call_id].batch == batch for call_id in ids)

    def answer(self, wall_s: float, times: int, *, batch: int) -> None:
        for _ in range(times):
            assert self.in_redis(batch)
            ref = next(iter(self.ledger.entries))
            outcome = dataclasses.replace(ok(), wall_s=wall_s)
            self.ledger.answer(Answer(ref=ref, call_id=min(self.ledger.entries[ref]), outcome=outcome))


@pytest.mark.parametrize("batch", [0, 1])
def test_of_slow_calls_no_more_are_in_redis_than_workers_hold(batch: int) -> None:
    """The same after many quick ones: 3 programs run at a time, and 3 wait for them."""
    answering = Answering()
    answering.open(400, batch=batch)
    answering.answer(0.0001, 60, batch=batch)
    assert answering.in_redis(batch) == 64
    answering.answer(4.0, 200, batch=batch)
    assert answering.in_redis(batch) == 3 + 3


@pytest.mark.parametrize("batch", [0, 1])
def test_what_nobody_has_seen_end_is_taken_for_slow(batch: int) -> None:
    answering = Answering()
    answering.open(400, batch=batch)
    assert answering.in_redis(batch) == 3 + 3
    answering.answer(0.0, 5, batch=batch)  # those that end first are the quick ones
    assert answering.in_redis(batch) == 3 + 3 + 5


def test_quick_calls_say_nothing_about_the_next_batch() -> None:
    answering = Answering()
    quick_ones = answering.open(400, batch=1)
    answering.answer(0.0001, 100, batch=1)
    answering.open(400, batch=2)
    answering.ledger.drop([call.id for call in quick_ones])
    assert answering.in_redis(2) == 3 + 3
    answering.answer(0.2, 40, batch=2)
    assert answering.in_redis(2) == 3 + 3
    answering.answer(0.0095, 200, batch=2)
    assert answering.in_redis(2) == 3 + 3 + 9  # what takes 30 ms


def test_the_first_of_another_owners_batch_waits_for_no_slow_program() -> None:
    """That nobody has seen one of its own end does not count against it."""
    answering = Answering()
    answering.open(400, batch=1)
    answering.answer(0.2, 100, batch=1)
    assert answering.in_redis(1) == 3 + 3
    request = ExecRequest(code="x", flavour="stdlib", owner="other")
    late = [answering.ledger.open(request, lambda _: None, batch=2) for _ in range(2)]
    assert answering.ledger.take(1 << 20) == late[:1]


def test_an_owners_call_that_was_lost_is_its_next_whatever_comes() -> None:
    """Also while others, and it, have more than the window holds."""
    ledger = OpenCalls(windows={"stdlib": CallWindow(capacity=2, most=4)})

    def open_many(owner: str, count: int) -> list[OpenCall]:
        request = ExecRequest(code="x", flavour="stdlib", owner=owner)
        return [ledger.open(request, lambda _: None, entry_calls=1) for _ in range(count)]

    first = open_many("few", 30)[0]
    ledger.sent(ledger.take(1 << 20), "stdlib/1-0")
    open_many("many", 60)
    assert first.state is CallState.ENTRY
    ledger.lost("stdlib/1-0")
    sent: list[OpenCall] = []
    for _ in range(8):
        while calls := ledger.take(1 << 20):
            sent += calls
            ledger.sent(calls, f"stdlib/{calls[0].id}-1")
        ref = next(iter(ledger.entries))
        ledger.answer(Answer(ref=ref, call_id=min(ledger.entries[ref]), outcome=ok()))
    assert next(call for call in sent if call.request.owner == "few") is first
    assert {call.request.owner for call in sent} == {"few", "many"}


def test_programs_that_take_no_time_at_all_widen_no_window_beyond_its_most() -> None:
    """A compiler's refusals are measured as 0 s: the mean of thousands is less than a number can be that a
    capacity is divided by."""
    pace = MeanCallTime()
    pace.answered(0.5)
    for _ in range(30_000):
        pace.answered(0.0)
    assert CallWindow(capacity=8, most=64).calls(pace) == 64


def test_a_flavour_that_nobody_runs_keeps_no_other_waiting() -> None:
    ledger = OpenCalls(windows={"numeric": quick(1)})
    for flavour in ("numeric", "numeric", "stdlib"):
        ledger.open(ExecRequest(code="x", flavour=flavour), lambda _: None, batch=1, entry_calls=1)
    assert [ledger.take(1 << 20)[0].request.flavour for _ in range(2)] == ["numeric", "stdlib"]
    assert ledger.next_key is None and ledger.take(1 << 20) == []
