"""pass@k, pass^k and maj@k are means over all draws of k attempts: here the draws are gone through."""

from collections import Counter
from itertools import combinations, combinations_with_replacement, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.statistics.estimators import maj_at_k, pass_at_k, pass_power_k


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_and_pass_power_k_are_means_over_all_draws(n: int) -> None:
    for c, k in product(range(n + 1), range(1, n + 1)):
        draws = list(combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(fmean(any(draw) for draw in draws))
        assert pass_power_k(n, c, k) == pytest.approx(fmean(all(draw) for draw in draws))


def majority(answers: list[str | None], correct: list[bool], k: int) -> float:
    """By the definition: in each draw the most frequent answers share the vote."""

    def rightness(answer: str) -> float:
        return fmean(c for a, c in zip(answers, correct, strict=True) if a == answer)

    values = []
    for draw in combinations(answers, k):
        votes = Counter(answer for answer in draw if answer is not None)
        winners = [a for a, number in votes.items() if number == max(votes.values())]
        values.append(fmean(map(rightness, winners)) if winners else 0.0)
    return fmean(values)


@pytest.mark.parametrize("n", range(1, 9))
def test_maj_at_k_is_a_mean_over_all_draws(n: int) -> None:
    """Votes for a right answer and three others, and silent attempts, in every mixture."""
    for answers in combinations_with_replacement((None, "a", "b", "c", "d"), n):
        for k in range(1, n + 1):
            correct = [answer == "a" for answer in answers]
            assert maj_at_k(answers, correct, k) == pytest.approx(majority(list(answers), correct, k))


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "a", "b", "c", "d", "e"]), st.booleans()), min_size=7, max_size=8
    )
)
def test_maj_at_k_of_any_verdicts_is_a_mean_over_all_draws(attempts: list[tuple[str | None, bool]]) -> None:
    """Also where an answer was judged both ways. A verdict without an answer is no vote."""
    answers = [answer for answer, _ in attempts]
    correct = [is_right and answer is not None for answer, is_right in attempts]
    for k in range(1, len(attempts) + 1):
        found = maj_at_k(answers, correct, k)
        assert found == pytest.approx(majority(answers, correct, k))
        assert found == maj_at_k(answers[::-1], correct[::-1], k)


def test_a_tie_is_decided_by_lot_and_not_by_place() -> None:
    assert maj_at_k(["a", "b"], [True, False], 2) == maj_at_k(["b", "a"], [False, True], 2) == 0.5
    assert maj_at_k(["a", "b", "c"], [True, False, False], 3) == pytest.approx(1 / 3)
    assert maj_at_k([None, None], [False, False], 2) == 0.0


def test_sixty_four_attempts_are_exact_too() -> None:
    """No draw is right but by the one right answer: maj@1 is avg@64; of all it is the vote itself."""
    answers = ["x"] * 20 + [f"wrong {n % 9}" for n in range(44)]
    correct = [answer == "x" for answer in answers]
    assert maj_at_k(answers, correct, 1) == pytest.approx(20 / 64)
    assert maj_at_k(answers, correct, 64) == 1.0


@pytest.mark.parametrize("k", [0, 4])
def test_k_is_one_to_n(k: int) -> None:
    with pytest.raises(ValueError, match=f"k = {k} of 3 attempts"):
        pass_at_k(3, 1, k)
    with pytest.raises(ValueError, match="attempts"):
        pass_power_k(3, 1, k)
    with pytest.raises(ValueError, match="attempts"):
        maj_at_k(["a"] * 3, [True] * 3, k)
