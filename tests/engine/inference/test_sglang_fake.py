"""The fake's KV accounting: never more slots than there are, never less than what runs, and none lost."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.sglang.fake import FakeRequest, FakeScheduler

VOCAB = 50
CAPACITY = 60


def scheduler(done: list[FakeRequest], **options: Any) -> tuple[FakeScheduler, Any]:
    made = FakeScheduler(
        vocab_size=VOCAB, capacity=CAPACITY, context_length=1000, weights_key=b"a", **options
    )

    def submit(rid: str, ids: tuple[int, ...], n: int, *, ignore_eos: bool = False) -> None:
        made.submit(
            FakeRequest(
                rid=rid,
                ids=ids,
                max_new_tokens=n,
                temperature=1.0,
                stop_ids=frozenset(),
                ignore_eos=ignore_eos,
                done=done.append,
            )
        )

    return made, submit


def check(made: FakeScheduler) -> None:
    kv = made.kv
    nodes = kv.used - kv.held + kv.evictable
    assert 0 <= kv.held <= kv.used <= kv.capacity and kv.free >= 0
    assert nodes + kv.held + kv.free == kv.capacity
    assert kv.held == sum(max(0, len(r.sequence) - 1 - len(r.locked)) for r in made.running)
    distinct = {r.locked[: k + 1] for r in made.running for k in range(len(r.locked))}
    assert kv.used - kv.held == len(distinct), "locked slots are the distinct prefixes of what runs"
    names = [r.rid for r in (*made.running, *made.waiting)]
    assert len(names) == len(set(names))


PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), PROMPTS, st.integers(1, 30), st.booleans()),
    st.tuples(st.just("step"), st.integers(1, 12)),
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume"), st.booleans()),
    st.tuples(st.just("abort"), st.integers(0, 12)),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(ACTIONS, max_size=30))
def test_slots_are_accounted_for_and_every_request_ends_once(actions: list[tuple[Any, ...]]) -> None:
    done: list[FakeRequest] = []
    made, submit = scheduler(done)
    submitted = 0
    for action in actions:
        if action[0] == "submit":
            submit(f"r{submitted}.", action[1], action[2], ignore_eos=action[3])
            submitted += 1
        elif action[0] == "step":
            for _ in range(action[1]):
                made.step()
                check(made)
        elif action[0] == "pause":
            made.pause()
        elif action[0] == "resume":
            if action[1] and made.paused:
                made.kv.flush()
            made.paused = False
        else:
            made.abort(f"r{action[1]}.")
        check(made)
    made.paused = False
    for _ in range(5000):
        if not made.step():
            break
        check(made)
    assert made.idle and made.kv.used == 0
    assert sorted(r.rid for r in done) == sorted(f"r{k}." for k in range(submitted))
    for request in done:
        assert request.finish is not None
        if request.finish["type"] == "length":
            assert len(request.out) == request.max_new_tokens


def test_what_a_full_pool_sends_back_ends_as_if_nothing_had_been() -> None:
    """Retracted requests keep their tokens and end with the tokens of a roomy pool."""
    crowded: list[FakeRequest] = []
    made, submit = scheduler(crowded)
    alone = []
    for k in range(4):
        submit(f"r{k}", (k, 1, 2), 25)
        one: list[FakeRequest] = []
        roomy, submit_one = scheduler(one)
        submit_one("r", (k, 1, 2), 25)
        while roomy.step():
            pass
        alone += one
    while made.step():
        check(made)
    assert made.num_retracted > 0 and sum(r.retractions for r in crowded) == made.num_retracted
    by_name = sorted(crowded, key=lambda r: r.rid)
    assert [(r.out, r.logprobs) for r in by_name] == [(r.out, r.logprobs) for r in alone]
