"""Packing changes nothing: every loss token once, behind its predictor, with its own weight."""

import itertools
import random
from collections import Counter
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.types import Origin, Trajectory
from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack, policy_examples, share_out, split_updates
from rocstar.train.learner.example import Example
from tests.fakes.tiny import make_example
from tests.fakes.trajectories import FakeTurn, make_trajectory

masks = st.lists(st.booleans(), min_size=1, max_size=30).map(lambda rest: [0, *map(int, rest)])
batches_of_masks = st.lists(masks, min_size=1, max_size=12)


def examples_of(batch: list[list[int]]) -> list[Example]:
    """Ids count upwards through the whole batch, so that a token's id says where it stood."""
    numbers = count(100)
    examples = []
    for k, mask in enumerate(batch):
        ids = [next(numbers) for _ in mask]
        examples.append(
            Example(
                ids=ids,
                mask=mask,
                weights=[i / 1000 * m for i, m in zip(ids, mask, strict=True)],
                rollout_logprobs=[-i / 100 if m else None for i, m in zip(ids, mask, strict=True)],
                advantage=float(k),
            )
        )
    return examples


@given(batch=batches_of_masks, budget=st.integers(1, 64))
def test_every_loss_token_is_packed_once_with_all_that_belongs_to_it(batch: list[list[int]], budget: int) -> None:
    examples = examples_of(batch)
    expected = {
        (token, example.advantage)
        for example in examples
        for token, is_loss in zip(example.ids, example.mask, strict=True)
        if is_loss
    }
    packed = pack(examples, tokens_per_microbatch=budget)
    seen: list[tuple[int, float]] = []
    for micro in packed:
        seen += zip(micro.targets_T.tolist(), micro.advantages_T.tolist(), strict=True)
        # The predictor is the token before, at its own place in its own sequence.
        assert (micro.ids_I[micro.rows_T] + 1).tolist() == micro.targets_T.tolist()
        assert micro.weights_T.tolist() == pytest.approx([i / 1000 for i in micro.targets_T.tolist()])
        assert micro.rollout_logprobs_T.tolist() == pytest.approx([-i / 100 for i in micro.targets_T.tolist()])
    assert len(seen) == len(set(seen)) and set(seen) == expected


@given(batch=batches_of_masks, budget=st.integers(1, 64))
def test_sequences_stay_whole_and_the_budget_is_kept(batch: list[list[int]], budget: int) -> None:
    """Up to their last loss token: no token behind it is computed."""
    examples = examples_of(batch)
    sequences: list[list[int]] = []
    for micro in pack(examples, tokens_per_microbatch=budget):
        assert sum(micro.lengths_S) == len(micro.ids_I) == len(micro.positions_I)
        assert sum(micro.lengths_S) <= budget or len(micro.lengths_S) == 1
        sequences += sequences_of(micro)
    assert sorted(sequences) == sorted(needed(e) for e in examples if any(e.mask))


def needed(example: Example) -> list[int]:
    return list(example.ids[: max(k for k, m in enumerate(example.mask) if m)])


def sequences_of(micro: MicroBatch) -> list[list[int]]:
    """The inputs of each sequence, shared ones first; each stands at its position."""
    sequences: list[list[int]] = []
    path: list[int] = []
    start = 0
    for own, shared in zip(micro.lengths_S, micro.shared_S, strict=True):
        path = [*path[:shared], *range(start, start + own)]
        start += own
        assert micro.positions_I[path].tolist() == list(range(len(path)))
        sequences.append(micro.ids_I[path].tolist())
    return sequences


alike = st.lists(st.integers(0, 1), min_size=1, max_size=24).map(lambda rest: [5, *rest])


@given(rows=st.lists(alike, min_size=1, max_size=12), budget=st.integers(1, 100), data=st.data())
def test_what_rows_begin_with_in_common_is_computed_once_and_every_target_keeps_its_own(
    rows: list[list[int]], budget: int, data: st.DataObject
) -> None:
    """Ids of two kinds, so that rows begin alike, end within one another or are equal."""
    examples = []
    for k, ids in enumerate(rows):
        mask = [0, *data.draw(st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1))]
        weights = [m * (100.0 * k + place) for place, m in enumerate(mask)]
        logprobs = [-float(place) if m else None for place, m in enumerate(mask)]
        examples.append(
            Example(ids=ids, mask=mask, weights=weights, rollout_logprobs=logprobs, advantage=k, name=str(k))
        )
    seen: Counter[str] = Counter()
    for micro in pack(examples, tokens_per_microbatch=budget):
        sequences = sequences_of(micro)
        assert len(micro.ids_I) <= budget or len(sequences) == 1
        starts = [0, *itertools.accumulate(micro.targets_S)]
        for s, name in enumerate(micro.names_S):
            example, span = examples[int(name)], slice(starts[s], starts[s + 1])
            places = [place for place, m in enumerate(example.mask) if m]
            assert sequences[s] == needed(example)
            assert micro.targets_T[span].tolist() == [example.ids[place] for place in places]
            assert micro.weights_T[span].tolist() == [example.weights[place] for place in places]
            assert micro.rollout_logprobs_T[span].tolist() == [-place for place in places]
            assert set(micro.advantages_T[span].tolist()) <= {float(name)}
            # Its predictor stands one place before it and reads what the sequence reads there.
            assert (micro.positions_I[micro.rows_T[span]] + 1).tolist() == places
            assert micro.ids_I[micro.rows_T[span]].tolist() == [example.ids[place - 1] for place in places]
            seen[name] += 1
        for s, (own, shared) in enumerate(zip(micro.lengths_S, micro.shared_S, strict=True)):
            assert own + shared == len(sequences[s])
            if s and shared == 0:  # then little is alike, or it is the first
                pairs = zip(sequences[s - 1], sequences[s], strict=False)
                common = list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
                assert len(common) < len(sequences[s]) / 8 or not common
    assert seen == Counter(e.name for e in examples if any(e.mask))


def test_siblings_pay_for_their_prompt_once() -> None:
    prompt = list(range(50))
    rows = [make_example([*prompt, 60 + k, 70, 71], [0] * 50 + [1, 1, 0]) for k in range(4)]
    (micro,) = pack(rows, tokens_per_microbatch=60)
    assert (micro.lengths_S, micro.shared_S) == ([51, 1, 1, 1], [0, 50, 50, 50])
    assert micro.rows_T.tolist() == [49, 50, 49, 51, 49, 52, 49, 53], "one prompt's end predicts all four"


def test_equal_rows_fill_the_budget() -> None:
    packed = pack(examples_of([[0, 1, 1]] * 6), tokens_per_microbatch=4)
    assert [micro.lengths_S for micro in packed] == [[2, 2]] * 3


@given(num=st.integers(0, 20), world_size=st.integers(1, 5))
def test_every_rank_gets_as_many_microbatches(num: int, world_size: int) -> None:
    micros = pack(examples_of([[0, 1]] * num), tokens_per_microbatch=1)
    shares = share_out(micros, world_size)
    assert len(shares) == world_size and len({len(share) for share in shares}) == 1
    given_out = [micro for share in shares for micro in share]
    assert Counter(id(m) for m in given_out if m.num_loss_tokens) == Counter(id(m) for m in micros)
    assert len(given_out) - num < world_size


def test_an_empty_microbatch_has_an_input_and_no_loss() -> None:
    micro: MicroBatch = empty_microbatch()
    assert micro.num_loss_tokens == 0 and len(micro.ids_I) == 1 == sum(micro.lengths_S)


@given(num=st.integers(0, 40), updates=st.integers(1, 6), seed=st.integers(0, 9))
def test_updates_part_the_batch_evenly(num: int, updates: int, seed: int) -> None:
    parts = split_updates(num, updates, random.Random(seed))
    assert sorted(k for part in parts for k in part) == list(range(num))
    assert len(parts) == min(updates, num)
    sizes = [len(part) for part in parts]
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)


turns = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3)


def with_tools(turn_lengths: list[tuple[int, int]]) -> Trajectory:
    numbers = count()
    made = [FakeTurn(ids=[*islice(numbers, policy)], answer=[*islice(numbers, tool)]) for policy, tool in turn_lengths]
    made[-1] = FakeTurn(ids=made[-1].ids)
    return make_trajectory(*made, prompt=(0, 1, 2))


@given(batch=st.lists(turns, min_size=1, max_size=6))
def test_only_what_the_policy_wrote_has_weight_and_the_weights_sum_to_one(batch: list[list[tuple[int, int]]]) -> None:
    trajectories = [with_tools(lengths) for lengths in batch]
    advantages = [float(k) for k in range(len(batch))]
    examples = policy_examples(trajectories, advantages)
    for t, example, advantage in zip(trajectories, examples, advantages, strict=True):
        wrote = [s.origin is Origin.policy for s in t.segments for _ in range(s.start, s.end)]
        assert [weight > 0 for weight in example.weights] == wrote == [m == 1 for m in example.mask]
        assert [p != 0 for p in example.rollout_logprobs] == wrote
        assert example.advantage == advantage
    assert sum(sum(example.weights) for example in examples) == pytest.approx(1.0)
    assert len({w for example in examples for w in example.weights if w}) == 1


@pytest.mark.parametrize(
    ("ids", "mask", "words"),
    [
        ([1, 2], [0], "one entry per token"),
        ([7, 7], [1, 1], "two tokens or more, the first without loss"),
        ([7], [0], "two tokens or more, the first without loss"),
    ],
)
def test_columns_that_are_no_example_are_refused(ids: list[int], mask: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_example(ids, mask)


def test_one_advantage_per_trajectory() -> None:
    with pytest.raises(ValueError, match="argument"):
        policy_examples([with_tools([(1, 1)])], [])


@given(batch=batches_of_masks, budget=st.integers(1, 64))
def test_a_token_is_behind_tool_output_if_the_policy_was_answered_before_it(
    batch: list[list[int]], budget: int
) -> None:
    """Prompt, policy, tool, policy: between two stretches of the policy lies its tool's output."""
    expected = {}
    for example in examples_of(batch):
        text = "".join(str(int(m)) for m in example.mask)
        for k, m in enumerate(example.mask):
            if m:
                expected[example.ids[k]] = "10" in text[:k]
    found = {}
    for micro in pack(examples_of(batch), tokens_per_microbatch=budget):
        found |= dict(zip(micro.targets_T.tolist(), micro.after_tool_T.tolist(), strict=True))
        assert sum(micro.targets_S) == micro.num_loss_tokens
        assert len(micro.targets_S) == len(micro.lengths_S) == len(micro.names_S)
    assert found == expected
