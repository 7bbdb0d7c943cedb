"""Optimizers and schedules of torch, put together; nothing here is our own mathematics."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from rocstar.train.learner.host_memory import sent


class Optimizers:
    """Several optimizers stepped as one, under one schedule."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], schedule: Callable[[int], float]) -> None:
        self.optimizers = list(optimizers)
        self._schedulers = [LambdaLR(optimizer, schedule) for optimizer in self.optimizers]
        self._moments_are_away = False

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self._schedulers[0].get_last_lr()[0])

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def parameters(self) -> list[Tensor]:
        return [p for o in self.optimizers for group in o.param_groups for p in group["params"]]

    def send_moments(self, device: torch.device | None = None) -> int:
        """Move the optimizers' state of each parameter to `device`, or back to the parameter's device. Return
        the number of moved bytes."""
        self._moments_are_away = device is not None
        moments = [
            (state, name)
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for name, value in state.items()
            if isinstance(value, Tensor) and value.ndim  # AdamW counts its steps where it likes
        ]
        before = [state[name] for state, name in moments]
        after = sent_to(before, device or local_part(self.parameters()[0]).device)
        for (state, name), value in zip(moments, after, strict=True):
            state[name] = value
        return sum(bytes_here(a) for a, b in zip(after, before, strict=True) if a is not b)

    def step(self) -> None:
        if self._moments_are_away:
            self.send_moments()
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self._schedulers:
            scheduler.step()

    def schedule_state(self) -> list[dict[str, Any]]:
        return [{"last_epoch": s.last_epoch, "step_count": s._step_count} for s in self._schedulers]

    def load_schedule_state(self, states: Iterable[dict[str, Any]]) -> None:
        for scheduler, state in zip(self._schedulers, states, strict=True):
            scheduler.last_epoch = state["last_epoch"]
            scheduler._step_count = state["step_count"]
            scheduler._last_lr = [
                base * rate(scheduler.last_epoch)
                for base, rate in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
            ]
            for group, lr in zip(scheduler.optimizer.param_groups, scheduler._last_lr, strict=True):
                group["lr"] = lr


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a possibly sharded tensor."""
    any_tensor: Any = tensor
    part: Tensor = any_tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def bytes_here(tensor: Tensor) -> int:
    """The bytes that this rank has of a tensor."""
    part = local_part(tensor)
    return part.numel() * part.element_size()


def sent_to(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return the tensors on another device, sharded as before; a tensor that is there is returned itself."""
    parts = [local_part(tensor) for tensor in tensors]
    found = []
    for tensor, part, new in zip(tensors, parts, sent(parts, device), strict=True):
        if new is part:
            new = tensor
        elif isinstance(tensor, DTensor):
            mesh, shape, stride = tensor.device_mesh, tensor.shape, tensor.stride()
            new = DTensor.from_local(new, mesh, tensor.placements, run_check=False, shape=shape, stride=stride)
        found.append(new)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSpec:
    """Which optimizer, how fast. Plain values, so that every rank can build its own.

    Rate: linear warm-up over `warmup_steps`; if `decay_fraction` > 0 the last part of `total_steps` is
    linear down to 2%; constant otherwise.
    """

    kind: Literal["adamw", "muon"]
    lr: float
    weight_decay: float
    grad_clip: float
    warmup_steps: int
    total_steps: int = 0
    decay_fraction: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    """Betas of AdamW. Muon's momentum is 0.95."""

    def rate(self, step: int) -> float:
        """Share of `lr` at the 0-based step."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        done = step / max(1, self.total_steps)
        if not self.decay_fraction or done < 1 - self.decay_fraction:
            return warm
        return warm * max(0.02, (1 - done) / self.decay_fraction)


def build(model: nn.Module, spec: OptimSpec) -> Optimizers:
    """AdamW over everything, or Muon over the matrices of the layers and AdamW over the rest. Only matrices
    decay, and of these the embeddings do not."""
    parameters: list[tuple[str, Tensor]] = [(n, p) for n, p in model.named_parameters() if p.requires_grad]

    def adamw(chosen: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        decays = [p.ndim > 1 and "embed" not in n for n, p in chosen]
        groups = [
            {"params": [p for (_, p), one in zip(chosen, decays, strict=True) if one == decay], **settings}
            for decay, settings in ((True, {}), (False, {"weight_decay": 0.0}))
        ]
        if not spec.weight_decay:  # one group, whose order is that of the model
            groups = [{"params": [p for _, p in chosen]}]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=spec.lr,
            betas=spec.betas,
            weight_decay=spec.weight_decay,
            fused=True,  # one pass over weights and moments instead of a dozen
        )

    if spec.kind == "adamw":
        return Optimizers([adamw(parameters)], spec.rate)
    matrices = [p for n, p in parameters if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in matrices}
    muon = torch.optim.Muon(
        matrices, lr=spec.lr, momentum=0.95, weight_decay=spec.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    rest = [(n, p) for n, p in parameters if id(p) not in chosen]  # none where adapters learn: all are matrices
    return Optimizers([muon, adamw(rest)] if rest else [muon], spec.rate)
