"""Advantage estimators by name: the value of a kept trajectory above its baseline. One file each,
tree.py for rollouts that fork; the others take each branch as a sibling, for the tokens that it sampled.

    groups of samples ──estimator──> per sample a number, or one number per loss token

Legend: `_G` kept siblings of one task, `_U` turns of a trajectory, `_T` its loss tokens.
"""

from collections.abc import Mapping
from typing import Final

from rocstar.train.algorithm.advantages.distill import distill
from rocstar.train.algorithm.advantages.dr_grpo import dr_grpo
from rocstar.train.algorithm.advantages.grpo import grpo
from rocstar.train.algorithm.advantages.reinforce_pp import reinforce_pp
from rocstar.train.algorithm.advantages.rloo import rloo
from rocstar.train.algorithm.advantages.sample import Advantage, Estimator, Path, Sample, has_no_signal, per_group
from rocstar.train.algorithm.advantages.tree import fork_loo, treerl

__all__ = ["ESTIMATORS", "Advantage", "Estimator", "Path", "Sample", "has_no_signal", "per_group"]

ESTIMATORS: Final[Mapping[str, Estimator]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "distill": distill,
    "fork_loo": fork_loo,
    "treerl": treerl,
}
