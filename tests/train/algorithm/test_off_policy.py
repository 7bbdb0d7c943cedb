"""Corrections against their equations token by token, measures against plain sums, the gate step by step."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.algorithm.off_policy import (
    AFTER_TOOL,
    ELSEWHERE,
    MASKED,
    Corrected,
    Correction,
    Gate,
    Mismatch,
    measure,
    start_kl,
)
from rocstar.train.algorithm.off_policy import correct as correct_tokens

from ...fakes.tiny import policy_tokens

CAP, FLOOR = 2.0, 0.5
logprobs = st.floats(-8.0, 0.0, width=32)
tokens = st.tuples(logprobs, logprobs, st.booleans())
sequences = st.lists(st.lists(tokens, max_size=6), min_size=1, max_size=5)
Sequences = list[list[tuple[float, float, bool]]]


def tensors(batch: Sequences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
    flat = [token for sequence in batch for token in sequence]
    old, rollout, after = ([t[k] for t in flat] for k in range(3))
    lengths = [len(sequence) for sequence in batch]
    return torch.tensor(old), torch.tensor(rollout), torch.tensor(after, dtype=torch.bool), lengths


def correct(old: torch.Tensor, rollout: torch.Tensor, lengths: list[int], **settings: Any) -> Corrected:
    return correct_tokens(policy_tokens(old, rollout_logprobs_T=rollout, lengths_S=lengths), **settings)


def measure_tokens(old: torch.Tensor, rollout: torch.Tensor, after: torch.Tensor, corrected: Corrected) -> Mismatch:
    return measure(policy_tokens(old, rollout_logprobs_T=rollout, after_tool_T=after), corrected)


def expected_weight(mode: str, sequence: list[tuple[float, float, bool]], k: int) -> float:
    """The definitions, one token at a time, in Python's floats."""
    r = math.exp(sequence[k][0] - sequence[k][1])
    if mode == "token":
        return min(r, CAP)
    if mode == "sequence":
        return min(math.exp(math.fsum(old - rollout for old, rollout, _ in sequence)), CAP)
    return r if FLOOR <= r <= CAP else 0.0


@pytest.mark.parametrize("mode", ["token", "sequence", "icepop"])
@given(batch=sequences)
def test_the_weight_is_that_of_the_equation(mode: str, batch: Sequences) -> None:
    old, rollout, _, lengths = tensors(batch)
    found = correct(old, rollout, lengths, mode=Correction(mode), cap=CAP, floor=FLOOR)
    expected = [expected_weight(mode, s, k) for s in batch for k in range(len(s))]
    assert found.weights_T is not None
    ratios = [math.exp(o - r) for s in batch for o, r, _ in s]
    for weight, wanted, ratio in zip(found.weights_T.tolist(), expected, ratios, strict=True):
        on_a_bound = min(abs(ratio - CAP), abs(ratio - FLOOR)) < 1e-5
        assert weight == pytest.approx(wanted, rel=1e-4, abs=1e-6) or on_a_bound
        assert 0 <= weight <= CAP


def test_the_ratio_is_learner_over_rollout() -> None:
    """A token that the learner finds twice as likely as the rollout did counts twice, not half."""
    old, rollout = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    found = correct(old, rollout, [1], mode=Correction.token, cap=9.0, floor=0.5)
    assert found.weights_T is not None and found.weights_T.tolist() == pytest.approx([2.0])


@pytest.mark.parametrize("mode", ["token", "icepop", "sequence"])
def test_equal_logprobs_give_exactly_one(mode: str) -> None:
    same = torch.tensor([-0.3, -7.0, 0.0])
    found = correct(same, same.clone(), [2, 1], mode=Correction(mode), cap=CAP, floor=FLOOR)
    assert found.weights_T is not None and found.weights_T.tolist() == [1.0, 1.0, 1.0]
    assert not found.is_capped_T.any() and not found.is_masked_T.any()


def test_icepop_keeps_its_bounds_and_drops_what_leaves_them() -> None:
    ratios = torch.tensor([0.49, 0.51, 1.0, 1.99, 2.01])
    found = correct(ratios.log(), torch.zeros(5), [5], mode=Correction.icepop, cap=CAP, floor=FLOOR)
    assert found.is_masked_T.tolist() == [True, False, False, False, True]
    assert found.weights_T is not None and found.weights_T.tolist() == pytest.approx([0, 0.51, 1, 1.99, 0])


def test_no_correction_multiplies_by_nothing() -> None:
    found = correct(torch.tensor([-1.0]), torch.tensor([-3.0]), [1], mode=Correction.none, cap=CAP, floor=FLOOR)
    assert found.weights_T is None and not found.is_capped_T.any()


def test_a_sequence_is_weighted_the_same_in_any_company() -> None:
    generator = torch.Generator().manual_seed(0)
    old, rollout = (-torch.rand(9, generator=generator) for _ in range(2))
    alone = correct(old[2:6], rollout[2:6], [4], mode=Correction.sequence, cap=CAP, floor=FLOOR)
    among = correct(old, rollout, [2, 4, 0, 3], mode=Correction.sequence, cap=CAP, floor=FLOOR)
    assert alone.weights_T is not None and among.weights_T is not None
    assert torch.equal(among.weights_T[2:6], alone.weights_T)


@pytest.mark.parametrize("mode", list(Correction))
def test_nothing_to_correct_is_no_error(mode: Correction) -> None:
    found = correct(torch.zeros(0), torch.zeros(0), [0], mode=mode, cap=CAP, floor=FLOOR)
    assert found.weights_T is None or found.weights_T.shape == (0,)
    assert measure_tokens(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.bool), found) == Mismatch()


def test_a_part_of_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="need whole sequences, got 2 tokens"):
        correct(torch.zeros(2), torch.zeros(2), [1], mode=Correction.sequence, cap=CAP, floor=FLOOR)


# ---- measures ----


def measured(batch: Sequences, mode: str = "icepop") -> Mismatch:
    old, rollout, after, lengths = tensors(batch)
    found = correct(old, rollout, lengths, mode=Correction(mode), cap=CAP, floor=FLOOR)
    return measure_tokens(old, rollout, after, found)


@given(batch=sequences)
def test_tokens_behind_tool_output_are_measured_apart(batch: Sequences) -> None:
    flat = [token for sequence in batch for token in sequence]
    found = measured(batch)
    for row, chosen in (
        (AFTER_TOOL, [t for t in flat if t[2]]),
        (ELSEWHERE, [t for t in flat if not t[2]]),
        (None, flat),
    ):
        assert found.num_tokens(row) == len(chosen)
        if not chosen:
            assert (found.kl(row), found.ratio_p99(row), found.mean(MASKED, row)) == (0, 1, 0)
            continue
        gaps = [rollout - old for old, rollout, _ in chosen]
        assert found.kl(row) == pytest.approx(math.fsum(gaps) / len(gaps), abs=1e-5)
        sure = [abs(g) for g in gaps if abs(abs(g) - math.log(2)) > 1e-4]
        masked = sum(g > math.log(2) for g in sure)
        assert masked <= round(found.mean(MASKED, row) * len(gaps)) <= masked + len(gaps) - len(sure)


@given(gaps=st.lists(st.floats(-6.0, 6.0, width=32), min_size=1, max_size=300))
def test_p99_is_the_nearest_rank_and_never_too_small(gaps: list[float]) -> None:
    old = torch.tensor(gaps) - 10.0
    rollout = torch.full_like(old, -10.0)
    found = measure_tokens(old, rollout, torch.zeros(len(gaps), dtype=torch.bool), _untouched(len(gaps)))
    sizes = (old - rollout).abs().double().sort().values
    wanted = float(sizes[math.ceil(0.99 * len(gaps)) - 1])
    assert wanted * (1 - 1e-9) - 1e-7 <= math.log(found.ratio_p99()) <= wanted * 1.017 + 1e-7


@given(batch=st.lists(sequences, min_size=2, max_size=3))
def test_parts_add_up_to_the_whole(batch: list[Sequences]) -> None:
    total = Mismatch()
    for part in batch:
        total.add(measured(part))
    whole = measured([sequence for part in batch for sequence in part])
    torch.testing.assert_close(total.sums, whole.sums, rtol=0, atol=1e-9)


def _untouched(n: int) -> Corrected:
    nothing = torch.zeros(n, dtype=torch.bool)
    return Corrected(weights_T=None, is_capped_T=nothing, is_masked_T=nothing)


# ---- the gate ----

GATE = Gate(kl=0.05, ratio_p99=2.0, steps=3)


def apart(gaps: list[float]) -> Mismatch:
    """Rollout minus learner of each token."""
    old = torch.full((len(gaps),), -10.0)
    after = torch.zeros(len(gaps), dtype=torch.bool)
    return measure_tokens(old, old + torch.tensor(gaps), after, _untouched(len(gaps)))


NEAR = apart([0.01] * 100)
OFFSET = apart([0.06] * 100)
TOO_LOW = apart([-0.06] * 100)
WIDE = apart([1.0, -1.0] + [0.0] * 98)
ONE_WIDE = apart([1.0] + [0.0] * 99)


def test_k3_has_the_kl_as_its_expectation_and_is_never_negative() -> None:
    now_V, start_V = (torch.log_softmax(torch.tensor(x), -1) for x in ([1.0, 0.0, -2.0], [0.5, 1.5, -1.0]))
    found_V = start_kl(now_V, start_V)
    kl = (now_V.double().exp() * (now_V - start_V)).sum()
    assert (found_V > 0).all() and torch.equal(start_kl(now_V, now_V), torch.zeros(3, dtype=torch.float64))
    assert float((now_V.double().exp() * found_V).sum()) == pytest.approx(float(kl), rel=1e-5)
    far = start_kl(torch.tensor([-1e9, 0.0]), torch.tensor([0.0, -1e9]))
    assert far.isfinite().all(), "the log-ratio is clamped"


@pytest.mark.parametrize(("mismatch", "is_bad"), [(NEAR, 0), (OFFSET, 1), (TOO_LOW, 1), (WIDE, 1), (ONE_WIDE, 0)])
def test_a_step_is_bad_by_its_kl_or_by_its_ratios(mismatch: Mismatch, is_bad: int) -> None:
    assert GATE.count(0, mismatch) == is_bad


def test_three_in_a_row_pause_and_one_good_step_ends_it() -> None:
    bad_steps, paused = 0, []
    for mismatch in (OFFSET, WIDE, NEAR, OFFSET, OFFSET, OFFSET, Mismatch(), WIDE, NEAR, OFFSET):
        bad_steps = GATE.count(bad_steps, mismatch)
        paused.append(GATE.pauses(bad_steps))
    assert paused == [False] * 5 + [True] * 3 + [False] * 2
    assert [GATE.skipped(k) for k in (0, 2, 3, 4)] == [0, 0, 1, 2]


def test_nan_is_bad_and_zero_steps_never_pause() -> None:
    broken = Mismatch(sums=NEAR.sums.clone())
    broken.sums[:, 1] = math.nan
    assert GATE.count(0, broken) == 1
    never = Gate(kl=0.05, ratio_p99=2.0, steps=0)
    assert not never.pauses(10**6) and never.skipped(10**6) == 0
