"""Random rows with everything that can happen to a token, and the comparison with the definition in float64.

Used by the tests, where triton interprets the kernels, and by proof.py, on the device itself. The reference
is `train/algorithm/loss.py`: its log_softmax, its loss, and the gradient of both by autograd.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rocstar.kernels.row_loss import LossOf, RowLoss
from rocstar.train.algorithm.loss import MAX_LOG_RATIO, PolicyLoss, PolicyTokens, logprobs_and_entropy, policy_loss
from rocstar.train.algorithm.losses.clip import Clip

FACTORS: Mapping[str, Sequence[Any]] = {
    "dtype": (torch.float32, torch.bfloat16),
    "vocabulary": (130, 1000, 4097),
    "temperature": (1.0, 0.7),
    "has_old": (False, True),
    "has_forbidden": (False, True),
    "shift": (0.0, -3000.0),
}
"""Values that the grid crosses. Other inputs of a loss the kernels do not see."""

VALUE_TOLERANCE = {"logprobs_N": 1e-6, "entropy_N": 1e-6, "loss_N": 1e-5}
"""Row by row, of max(1, |value|); of a loss, of max(1 / N, |value|), for it carries the log-prob's error."""
GRADIENT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 1e-3}
"""Tolerance relative to the gradient's norm. Rounding the result to bfloat16 alone costs 1.7e-3."""
TRUNCATING_GRADIENT_TOLERANCE = {**GRADIENT_TOLERANCE, torch.bfloat16: 8e-3}
"""The interpreter cuts float32 to bfloat16 where a device rounds."""


class RowLossOp(Protocol):
    """`row_loss_` of `torch_ops` and `triton_ops`."""

    def __call__(
        self, logits_NV: Tensor, ids_N: Tensor, loss_of: LossOf, *, temperature: float, grad: bool, **more: Any
    ) -> RowLoss: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Inputs of each row besides its logits, shape (N,)."""

    ids_N: Tensor
    weights_N: Tensor
    advantages_N: Tensor
    old_logprobs_N: Tensor | None = None
    """Also those of the rollout."""
    entropy_weights_N: Tensor | None = None
    loss: PolicyLoss = Clip(clip_low=0.2, clip_high=0.28)  # noqa: RUF009

    def loss_of(self, logprobs_B: Tensor, rows: slice) -> Tensor:
        """The policy loss of some of the rows, in the type of the log-probs; a `LossOf`. All rows: one sequence."""
        old_N, dtype = self.old_logprobs_N, logprobs_B.dtype
        old_B = logprobs_B.detach() if old_N is None else old_N[rows].to(dtype)
        tokens = PolicyTokens(
            logprobs_T=logprobs_B,
            old_logprobs_T=old_B,
            rollout_logprobs_T=old_B,
            advantages_T=self.advantages_N[rows].to(dtype),
            after_tool_T=torch.zeros_like(old_B, dtype=torch.bool),
            lengths_S=[len(old_B)] if len(old_B) == len(self.ids_N) else None,
        )
        return policy_loss(self.loss, tokens, weights_T=self.weights_N[rows].to(dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of the grid."""

    dtype: torch.dtype = torch.float32
    vocabulary: int = 1000
    temperature: float = 1.0
    has_old: bool = True
    has_forbidden: bool = False
    """Some columns are -inf."""
    shift: float = 0.0
    """Added to all logits."""
    num_rows: int = 12
    seed: int = 0

    def build(self, device: torch.device | str = "cpu") -> tuple[Tensor, Rows]:
        """Logits, and rows 0 to 3 with: the last column, saturated ratios up and down, advantage 0."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal_N() -> Tensor:
            return torch.randn(self.num_rows, generator=generator)

        logits_NV = torch.randn(self.num_rows, self.vocabulary, generator=generator) * 4 + self.shift
        ids_N = torch.randint(9, self.vocabulary, (self.num_rows,), generator=generator)
        ids_N[0] = self.vocabulary - 1
        if self.has_forbidden:
            logits_NV[:, 5:9] = -torch.inf
        logits_NV = logits_NV.to(self.dtype)
        exact_N = logprobs_and_entropy(logits_NV.double(), ids_N, self.temperature)[0].float()
        old_N, advantages_N = exact_N + 0.4 * normal_N(), normal_N()
        old_N[1], old_N[2] = exact_N[1] - MAX_LOG_RATIO - 1, exact_N[2] + MAX_LOG_RATIO + 1
        advantages_N[1], advantages_N[2], advantages_N[3] = -0.5, 0.5, 0.0
        weights_N = (torch.rand(self.num_rows, generator=generator) + 0.5) / self.num_rows
        rows = Rows(
            ids_N=ids_N.to(device),
            weights_N=weights_N.to(device),
            advantages_N=advantages_N.to(device),
            old_logprobs_N=old_N.to(device) if self.has_old else None,
            entropy_weights_N=0.3 * (advantages_N * weights_N).to(device) if self.has_old else None,
        )
        return logits_NV.to(device), rows


def grid(*, half: bool = False) -> Iterator[Case]:
    """Every combination of FACTORS, each with a seed of its own; small vocabularies first.

    `half`: those where an even number of the five factors with two levels are at the second one. Any four of
    them still meet in all their combinations, with every vocabulary.
    """
    cases = [
        Case(seed=seed, **dict(zip(FACTORS, levels, strict=True)))
        for seed, levels in enumerate(itertools.product(*FACTORS.values()))
        if not (half and _second_levels(levels) % 2)
    ]
    yield from sorted(cases, key=lambda case: case.vocabulary)


def _second_levels(levels: Sequence[Any]) -> int:
    two = [(level, of) for level, of in zip(levels, FACTORS.values(), strict=True) if len(of) == 2]
    return sum(level == of[1] for level, of in two)


def exact_entropy(logits_NV: Tensor, temperature: float) -> Tensor:
    """The entropy of each row in nats, differentiable; without the clamp a forbidden column has a gradient of NaN."""
    log_p_NV = torch.log_softmax(logits_NV / temperature, -1)
    return -(log_p_NV.exp() * log_p_NV.clamp(min=-1e30)).sum(-1)


def expected(logits_NV: Tensor, rows: Rows, temperature: float) -> tuple[RowLoss, Tensor]:
    """The expected results, and the gradient of the summed loss, in float64."""
    x_NV = logits_NV.detach().double().requires_grad_(True)
    with torch.enable_grad():
        logprobs_N, entropy_N = logprobs_and_entropy(x_NV, rows.ids_N, temperature)
        loss_N = rows.loss_of(logprobs_N, slice(None))
        if rows.entropy_weights_N is not None:
            loss_N = loss_N + rows.entropy_weights_N * exact_entropy(x_NV, temperature)
        (dlogits_NV,) = torch.autograd.grad(loss_N.sum(), x_NV)
    wanted = RowLoss(loss_N=loss_N.detach(), logprobs_N=logprobs_N.detach(), entropy_N=entropy_N)
    return wanted, dlogits_NV


def check(
    row_loss_: RowLossOp,
    case: Case,
    *,
    device: torch.device | str = "cpu",
    tolerance: Mapping[torch.dtype, float] = GRADIENT_TOLERANCE,
) -> dict[str, float]:
    """Run one case with and without gradient and hold everything to the definition; returns the errors.

    Raises:
        AssertionError: names the output, its error and the case.
    """
    logits_NV, rows = case.build(device)
    wanted, wanted_NV = expected(logits_NV, rows, case.temperature)
    before_NV = logits_NV.clone()
    named: dict[str, Any] = {"temperature": case.temperature, "entropy_weights_N": rows.entropy_weights_N}
    run = functools.partial(row_loss_, logits_NV, rows.ids_N, rows.loss_of, **named)
    read_only = run(grad=False)
    _require(torch.equal(logits_NV, before_NV), "logits changed without grad", case)
    found = run(grad=True)
    errors = {}
    for name, allowed in VALUE_TOLERANCE.items():
        a_N, b_N = getattr(found, name), getattr(wanted, name)
        _require(torch.equal(getattr(read_only, name), a_N), f"{name} differs with and without grad", case)
        scale_N = b_N.abs().clamp_min(1.0 / case.num_rows if name == "loss_N" else 1.0)
        errors[name] = float(((a_N - b_N).abs() / scale_N).nan_to_num(torch.inf).max())
        _require(errors[name] <= allowed, f"{name} is off by {errors[name]:.2e} > {allowed}", case)
    got_NV = logits_NV.double()
    _require(not bool(got_NV[wanted_NV.abs().amax(1) == 0].any()), "a row without gradient has one", case)
    errors["gradient"] = float((got_NV - wanted_NV).norm() / wanted_NV.norm().clamp_min(1e-30))
    # Where two terms of a row cancel, the rest has few digits: a tenth of the largest row is the scale.
    scale_N = wanted_NV.norm(dim=1)
    scale_N = scale_N.clamp_min(0.1 * float(scale_N.max()) + 1e-30)
    errors["gradient of a row"] = float(((got_NV - wanted_NV).norm(dim=1) / scale_N).max())
    allowed, worst = tolerance[case.dtype], errors["gradient of a row"]
    _require(errors["gradient"] <= allowed, f"gradient is off by {errors['gradient']:.2e} > {allowed}", case)
    _require(worst <= 3 * allowed, f"the gradient of a row is off by {worst:.2e} > {3 * allowed}", case)
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
