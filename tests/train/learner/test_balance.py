"""Microbatches part the work evenly, keep their budget and lose nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.learner.balance import Cost, balance, efficiency
from rocstar.train.learner.batch import TOKENS, empty_microbatch, pack, share_out
from rocstar.train.learner.example import Example

from ...fakes.tiny import make_example

LIKE_14B = Cost(per_token=2 * 13.2e9, per_pair=4.0 * 40 * 5120, per_target=2.0 * 5120 * 151936)


@given(sizes=st.lists(st.integers(1, 90), max_size=60), room=st.integers(1, 100), ranks=st.integers(1, 9))
def test_every_item_is_in_one_bin_and_bins_keep_their_room(sizes: list[int], room: int, ranks: int) -> None:
    bins = balance(sizes, list(map(float, sizes)), room=room, ranks=ranks)
    assert sorted(k for one in bins for k in one) == list(range(len(sizes)))
    assert all(len(one) == 1 or sum(sizes[k] for k in one) <= room for one in bins)
    assert len(bins) >= min(ranks, len(sizes)), "a rank with nothing to do"
    costs = [sum(sizes[k] for k in one) for one in bins]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(("mean", "cap"), [(3_000, 8_192), (6_000, 12_288), (10_000, 12_288)])
def test_rounds_of_64_ranks_waste_little(mean: int, cap: int) -> None:
    """The length mixes of three RL stages; in the order of their ids, next fit gave 0.86, 0.76 and 0.68."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(mean), 0.6, 8192), 200, cap).astype(int).tolist()
    costs = [LIKE_14B.of(length, 0, length // 2) for length in lengths]
    bins = balance(lengths, costs, room=20_480, ranks=64)
    assert efficiency([sum(costs[k] for k in one) for one in bins], 64) > 0.97


def rows(num: int, length: int) -> list[Example]:
    return [make_example(range(k, k + length), [0] + [1] * (length - 1)) for k in range(num)]


def test_a_small_batch_keeps_every_rank_busy() -> None:
    """128 conversations of 1,500 tokens fill 10 microbatches of 20,480; 64 ranks get two rows each."""
    micros = pack(rows(128, 1_500), tokens_per_microbatch=20_480, ranks=64)
    shares = share_out(micros, 64)
    assert [len(share) for share in shares] == [1] * 64
    assert {share[0].num_loss_tokens for share in shares} == {2 * 1_499}


@given(num=st.integers(1, 30), budget=st.integers(1, 40), ranks=st.integers(1, 5))
def test_for_any_number_of_ranks_each_target_is_packed_once(num: int, budget: int, ranks: int) -> None:
    micros = pack(rows(num, 9), tokens_per_microbatch=budget, ranks=ranks)
    assert sum(micro.num_loss_tokens for micro in micros) == 8 * num
    assert all(sum(micro.lengths_S) <= budget or len(micro.lengths_S) == 1 for micro in micros)
    given_out = [micro for share in share_out(micros, ranks) for micro in share]
    assert sum(micro.num_loss_tokens for micro in given_out) == 8 * num


def test_what_a_row_costs() -> None:
    """Causal attention: token k of a row reads those before it, shared ones too, and itself."""
    cost = Cost(per_token=1.0, per_pair=10.0, per_target=100.0)
    assert cost.of(3, 0, 2) == 3 + 10 * (1 + 2 + 3) + 200
    assert cost.of(3, 4, 0) == 3 + 10 * (5 + 6 + 7)
    assert cost.of(7, 0, 0) == cost.of(4, 0, 0) + cost.of(3, 4, 0)
    assert TOKENS.of(5, 9, 3) == 5


def test_no_rows_and_no_work() -> None:
    assert balance([], [], room=4) == [] and pack([], tokens_per_microbatch=4) == []
    assert efficiency([], 4) == 1.0 and empty_microbatch().num_loss_tokens == 0


def test_a_log_prob_that_is_not_a_number_stays_so() -> None:
    """A missing one is nothing to correct for; one that is not finite must be refused later."""
    row = make_example([1, 2, 3], [0, 1, 1], rollout_logprobs=[None, None, float("nan")])
    (micro,) = pack([row], tokens_per_microbatch=8)
    assert micro.rollout_logprobs_T[0] == 0 and micro.rollout_logprobs_T[1].isnan()
    assert micro.unusable(10) == ["rollout_logprobs"]
