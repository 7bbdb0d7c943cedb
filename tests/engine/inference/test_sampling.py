"""Inverse-CDF sampling: the right token for a given number, the right frequencies, the exact log-prob."""

import math

import numpy as np
import pytest
import torch

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded import sampling
from rocstar.engine.inference.embedded.sampling import noise, sample

pytestmark = pytest.mark.usefixtures("_one_torch_thread", "way")


@pytest.fixture(params=["C++", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(sampling, "_decode", None)
    else:
        assert sampling._decode is not None, "csrc/attend is not built: make setup"


def one(logits: list[float], u: float, temperature: float = 1.0) -> tuple[int, float]:
    tokens, logprobs = sample(torch.tensor([logits]), [temperature], torch.tensor([u], dtype=torch.float64))
    return tokens[0], logprobs[0]


LOGITS = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]
ALMOST_ONE = 1 - 2.0**-53


@pytest.mark.parametrize(("u", "token"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.31, 2), (0.59, 2), (0.61, 3)])
def test_number_picks_its_token(u: float, token: int) -> None:
    assert one(LOGITS, u) == (token, pytest.approx(LOGITS[token], abs=1e-6))


def test_temperature_shapes_both_the_draw_and_the_logprob() -> None:
    powers = [p**2 for p in (0.1, 0.2, 0.3, 0.4)]
    for u, token in [(0.02, 0), (0.1, 1), (0.4, 2), (0.5, 3)]:
        assert one(LOGITS, u, 0.5) == (token, pytest.approx(math.log(powers[token] / sum(powers)), abs=1e-6))


def test_greedy_takes_the_top_and_tells_the_logprob_of_temperature_one() -> None:
    for u in (0.0, 0.5, ALMOST_ONE):
        assert one(LOGITS, u, 0.0) == (3, pytest.approx(math.log(0.4), abs=1e-6))


@pytest.mark.parametrize("u", [0.0, ALMOST_ONE])
def test_impossible_tokens_are_never_drawn(u: float) -> None:
    """At both ends of the interval, where rounding makes the target 0 or the whole mass."""
    inf = -math.inf
    token, logprob = one([inf, inf, *LOGITS, inf, inf], u)
    assert token in {2, 5} and math.isfinite(logprob)


def test_tail_without_visible_mass_is_not_drawn_by_rounding() -> None:
    """float32(1 - 2**-53) is 1.0: the whole mass. That number comes once in 2**25 draws; a token of
    probability e**-60 must not."""
    assert one([0.0, 0.0, -60.0, -60.0], ALMOST_ONE)[0] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_raise(bad: float) -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        sample(torch.tensor([[0.0, 1.0], [0.0, bad]]), [0.0, 1.0], torch.tensor([0.5, 0.5]))


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    (token,), (logprob,) = sample(logits, [1.0], torch.tensor([0.3]))
    assert logprob == pytest.approx(torch.log_softmax(logits.float(), -1)[0, token].item(), abs=1e-6)


def test_frequencies_are_the_probabilities() -> None:
    n = 20_000
    draws = noise([3] * n, list(range(n)))
    tokens, _ = sample(torch.tensor([LOGITS] * n), [1.0] * n, draws)
    counts = np.bincount(tokens, minlength=4) / n
    for share, p in zip(counts, (0.1, 0.2, 0.3, 0.4), strict=True):
        assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("temperature", [-0.1, math.nan])
def test_temperature_is_checked(temperature: float) -> None:
    with pytest.raises(ValueError, match="0 = greedy"):
        Sampling(temperature=temperature)
