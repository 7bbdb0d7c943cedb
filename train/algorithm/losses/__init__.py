"""Policy losses by name, one file each: equation, source, constants, edge cases.

    tokens ──loss──> per token a loss        train/algorithm/loss.py: weights and correction are multiplied outside

    name     ratio of the current probability to     whose gradient is stopped
    clip     that at the batch start                 tokens whose ratio left its interval
    cispo    that of the rollout                     none
    gspo     that of the rollout                     sequences whose mean ratio left its interval
    dppo     that of the rollout                     tokens whose probability moved too far
    sapo     that of the rollout                     none: it fades

A loss that starts from the rollout's probability contains the importance weight: the off-policy correction must not
multiply another one, and a recipe that asks for both is refused.
"""

from collections.abc import Callable, Mapping
from typing import Final

from rocstar.train.algorithm.loss import PolicyLoss
from rocstar.train.algorithm.losses.cispo import Cispo
from rocstar.train.algorithm.losses.clip import Clip
from rocstar.train.algorithm.losses.dppo import Dppo
from rocstar.train.algorithm.losses.gspo import Gspo
from rocstar.train.algorithm.losses.sapo import Sapo

LOSSES: Final[Mapping[str, Callable[..., PolicyLoss]]] = {
    "clip": Clip,
    "cispo": Cispo,
    "gspo": Gspo,
    "dppo": Dppo,
    "sapo": Sapo,
}
