"""The policy losses and corrections once more, token by token in float64, as their equations are printed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss
from rocstar.train.algorithm.losses import LOSSES

CONSTANTS = {
    "clip": {"clip_low": 0.2, "clip_high": 0.28},
    "cispo": {"low": 0.7, "high": 1.6},
    "gspo": {"low": 0.85, "high": 1.2},
    "dppo": {"low": 0.004, "high": 0.002},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.3},
}
"""So narrow that each bound acts in the tests' batches."""
CAP, FLOOR = 2.0, 0.75


def made(name: str) -> PolicyLoss:
    return LOSSES[name](**CONSTANTS[name])


def oracle_loss(
    name: str, now_T: Tensor, old_T: Tensor, rollout_T: Tensor, advantages_T: Tensor, lengths_S: Sequence[int]
) -> Tensor:
    """The loss of each token; `now_T` may need a gradient."""
    now_T, old_T, rollout_T, advantages_T = (x.double() for x in (now_T, old_T, rollout_T, advantages_T))
    found, start = [], 0
    for length in lengths_S:
        places = range(start, start + length)
        start += length
        sequence_ratio = torch.exp(sum((now_T[k] - rollout_T[k] for k in places), torch.zeros(())) / max(1, length))
        for k in places:
            now, mu, advantage = now_T[k], float(rollout_T[k]), float(advantages_T[k])
            ratio = torch.exp(now - (float(old_T[k]) if name == "clip" else mu))
            own_ratio = sequence_ratio.detach() * torch.exp(now - now.detach())
            found.append(_token(name, now, mu, own_ratio if name == "gspo" else ratio, advantage))
    return torch.stack(found) if found else now_T


def _token(name: str, now: Tensor, mu: float, ratio: Tensor, advantage: float) -> Tensor:
    c = CONSTANTS[name]
    if name == "cispo":
        return -min(max(float(ratio.detach()), c["low"]), c["high"]) * advantage * now
    if name == "sapo":
        tau = c["tau_positive"] if advantage > 0 else c["tau_negative"]
        return -4 / tau / (1 + torch.exp(-tau * (ratio - 1))) * advantage
    if name == "dppo":
        rise = math.exp(float(now.detach())) - math.exp(mu)
        masked = (advantage > 0 and rise > c["high"]) or (advantage < 0 and -rise > c["low"])
        return now * 0 if masked else -ratio * advantage
    low, high = (1 - c["clip_low"], 1 + c["clip_high"]) if name == "clip" else (c["low"], c["high"])
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


def oracle_factors(
    mode: str, now_T: Tensor, old_T: Tensor, rollout_T: Tensor, advantages_T: Tensor, lengths_S: Sequence[int]
) -> list[float]:
    """The factor of each token by the correction's definition, in Python's floats."""
    now, old, mu, advantages = (x.tolist() for x in (now_T, old_T, rollout_T, advantages_T))
    found, start = [], 0
    for length in lengths_S:
        places = range(start, start + length)
        start += length
        product = math.exp(math.fsum(old[k] - mu[k] for k in places))
        mean = math.exp(math.fsum(now[k] - mu[k] for k in places) / max(1, length))
        for k in places:
            r = math.exp(old[k] - mu[k])
            found.append({
                "none": 1.0,
                "token": min(r, CAP),
                "sequence": min(product, CAP),
                "icepop": r if FLOOR <= r <= CAP else 0.0,
                "sequence_mask": product if product <= CAP else 0.0,
                "negative_mask": 0.0 if advantages[k] < 0 and mean < FLOOR else 1.0,
            }[mode])  # fmt: skip
    return found
