"""Random rows with everything that can happen to a token, and the comparison with the float64 reference.

Used by the tests, where triton interprets the kernels, and by the benchmark, on the device itself.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rocstar.kernels import reference
from rocstar.kernels.tokens import CLIP_MASKED, MAX_LOG_RATIO, LossSpec, Tokens, TokenStats

FACTORS: Mapping[str, Sequence[Any]] = {
    "dtype": (torch.float32, torch.bfloat16),
    "vocabulary": (130, 1000, 4097),
    "temperature": (1.0, 0.7),
    "has_old": (False, True),
    "kl_coef": (0.0, 0.1),
    "has_tis": (False, True),
    "entropy_coef": (0.0, 0.01),
    "dual_clip": (None, 1.5),
    "is_masked": (False, True),
    "has_forbidden": (False, True),
    "shift": (0.0, -3000.0),
}
"""What the grid crosses; the last five levels of a row are in every case."""

LOGPROB_TOLERANCE = 1e-6  # of max(1, |value|), row by row; entropy too
VALUE_TOLERANCE = 1e-5  # ratio and loss, which carry the log-prob's error times its size
GRADIENT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 1e-3}
"""Of the gradient's norm. Rounding the result to bfloat16 alone costs 1.7e-3."""
TRUNCATING_GRADIENT_TOLERANCE = {**GRADIENT_TOLERANCE, torch.bfloat16: 8e-3}
"""The interpreter cuts float32 to bfloat16 where a device rounds."""


class TokenLoss(Protocol):
    """`token_loss_` of `torch_ops` and `triton_ops`."""

    def __call__(self, logits_NV: Tensor, tokens: Tokens, spec: LossSpec, *, grad: bool) -> TokenStats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of the grid."""

    dtype: torch.dtype = torch.float32
    vocabulary: int = 1000
    temperature: float = 1.0
    has_old: bool = True
    kl_coef: float = 0.0
    has_tis: bool = False
    entropy_coef: float = 0.0
    dual_clip: float | None = None
    is_masked: bool = True
    has_forbidden: bool = False
    """Some columns are -inf."""
    shift: float = 0.0
    """Added to all logits."""
    num_rows: int = 12
    seed: int = 0

    def build(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tokens, LossSpec]:
        """Logits, tokens, constants. Rows 0 to 3: last column, saturated ratios up and down, advantage 0."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal_N() -> Tensor:
            return torch.randn(self.num_rows, generator=generator)

        logits_NV = torch.randn(self.num_rows, self.vocabulary, generator=generator) * 4 + self.shift
        ids_N = torch.randint(9, self.vocabulary, (self.num_rows,), generator=generator)
        ids_N[0] = self.vocabulary - 1
        if self.has_forbidden:
            logits_NV[:, 5:9] = -torch.inf
        logits_NV = logits_NV.to(self.dtype)
        spec = LossSpec(
            temperature=self.temperature,
            kl_coef=self.kl_coef,
            entropy_coef=self.entropy_coef,
            dual_clip=self.dual_clip,
        )
        exact_NV = torch.log_softmax(logits_NV.double() / self.temperature, dim=-1)
        exact_N = exact_NV.gather(1, ids_N[:, None])[:, 0].float()
        old_N, advantages_N = exact_N + 0.4 * normal_N(), normal_N()
        old_N[1], old_N[2] = exact_N[1] - MAX_LOG_RATIO - 1, exact_N[2] + MAX_LOG_RATIO + 1
        advantages_N[1], advantages_N[2], advantages_N[3] = -0.5, 0.5, 0.0
        weights_N = (torch.rand(self.num_rows, generator=generator) + 0.5) / self.num_rows
        tis_N, ref_N = torch.rand(self.num_rows, generator=generator) * 2, exact_N + 0.3 * normal_N()
        if self.is_masked:
            weights_N[4::3] = 0.0
        tokens = Tokens(
            ids_N=ids_N,
            weights_N=weights_N,
            advantages_N=advantages_N,
            old_logprobs_N=old_N if self.has_old else None,
            ref_logprobs_N=ref_N if self.kl_coef else None,
            tis_N=tis_N if self.has_tis else None,
        )
        moved = {name: tensor.to(device) for name, tensor in tokens.per_row().items()}
        return logits_NV.to(device), Tokens(**moved), spec


def full_grid() -> Iterator[Case]:
    """Every combination of FACTORS, each with a seed of its own."""
    for seed, levels in enumerate(itertools.product(*FACTORS.values())):
        yield Case(seed=seed, **dict(zip(FACTORS, levels, strict=True)))


def pairwise_grid(seed: int = 0) -> list[Case]:
    """Few cases in which every two levels of any two factors meet at least once; greedy, reproducible."""
    rng = random.Random(seed)
    names = list(FACTORS)
    missing = {
        pair
        for a, b in itertools.combinations(names, 2)
        for pair in itertools.product(((a, x) for x in FACTORS[a]), ((b, y) for y in FACTORS[b]))
    }
    rows: list[dict[str, Any]] = []
    while missing:
        drawn = [{name: rng.choice(FACTORS[name]) for name in names} for _ in range(200)]
        best = max(drawn, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        rows.append(best)
    return [Case(seed=index, **row) for index, row in enumerate(rows)]


def _pairs(row: Mapping[str, Any]) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    return set(itertools.combinations(row.items(), 2))


def check(
    token_loss_: TokenLoss,
    case: Case,
    *,
    device: torch.device | str = "cpu",
    tolerance: Mapping[torch.dtype, float] = GRADIENT_TOLERANCE,
) -> dict[str, float]:
    """Run one case with and without gradient and hold everything to the reference; returns the errors.

    Masked rows are filled with NaN first: reading one shows in the result.

    Raises:
        AssertionError: what is off, by how much, in which case.
    """
    logits_NV, tokens, spec = case.build(device)
    expected = reference.token_loss(logits_NV, tokens, spec)
    live_N = tokens.weights_N != 0
    logits_NV[~live_N] = torch.nan
    before_NV = logits_NV.clone()
    read_only = token_loss_(logits_NV, tokens, spec, grad=False)
    _require(torch.equal(logits_NV.nan_to_num(), before_NV.nan_to_num()), "logits changed without grad", case)
    stats = token_loss_(logits_NV, tokens, spec, grad=True)
    for name in TokenStats.__slots__:
        same = torch.equal(getattr(read_only, name).nan_to_num(), getattr(stats, name).nan_to_num())
        _require(same, f"{name} differs with and without grad", case)
    errors = _stats_errors(stats, expected.stats, live_N, case)
    wanted_NV, got_NV = expected.dlogits_NV, logits_NV.double()
    _require(not bool(got_NV[~live_N].any()), "a masked row has a gradient", case)
    _require(not bool(got_NV[wanted_NV.abs().amax(1) == 0].any()), "a row without gradient has one", case)
    errors["gradient"] = float((got_NV - wanted_NV).norm() / wanted_NV.norm().clamp_min(1e-30))
    # Where two terms of a row cancel, what is left has few digits: a tenth of the largest row is the scale.
    scale_N = wanted_NV.norm(dim=1)
    scale_N = scale_N.clamp_min(0.1 * float(scale_N.max()) + 1e-30)
    errors["gradient of a row"] = float(((got_NV - wanted_NV).norm(dim=1) / scale_N).max())
    allowed = tolerance[case.dtype]
    _require(errors["gradient"] <= allowed, f"gradient is off by {errors['gradient']:.2e} > {allowed}", case)
    worst = errors["gradient of a row"]
    _require(worst <= 3 * allowed, f"the gradient of a row is off by {worst:.2e} > {3 * allowed}", case)
    return errors


def _stats_errors(got: TokenStats, wanted: TokenStats, live_N: Tensor, case: Case) -> dict[str, float]:
    _require(bool((got.clip_code_N[~live_N] == CLIP_MASKED).all()), "a masked row has a clip code", case)
    _require(bool(got.logprobs_N[~live_N].isnan().all()), "a masked row has a log-prob", case)
    _require(torch.equal(got.clip_code_N, wanted.clip_code_N), "clip codes differ", case)
    errors = {}
    for name, allowed, scale in (
        ("logprobs_N", LOGPROB_TOLERANCE, 1.0),
        ("entropy_N", LOGPROB_TOLERANCE, 1.0),
        ("ratio_N", VALUE_TOLERANCE, 0.0),
        ("loss_N", VALUE_TOLERANCE, 1.0 / case.num_rows),
    ):
        a_L, b_L = getattr(got, name)[live_N].double(), getattr(wanted, name)[live_N]
        error = float(
            ((a_L - b_L).abs() / b_L.abs().clamp_min(max(scale, 1e-30))).nan_to_num(torch.inf).max()
        )
        _require(error <= allowed, f"{name} is off by {error:.2e} > {allowed}", case)
        errors[name] = error
    return errors


def _require(condition: bool, complaint: str, case: Case) -> None:
    # Not an assert statement: a benchmark under `python -O` must check too.
    if not condition:
        raise AssertionError(f"{complaint} in {case}")


def is_caught(check_all: Callable[[], object]) -> bool:
    """Whether a check fails, for tests that plant an error."""
    try:
        check_all()
    except AssertionError:
        return True
    return False
