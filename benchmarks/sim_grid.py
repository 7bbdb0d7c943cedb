"""The one grid over which every policy of bench_sim.py is tuned: its own tunables x the engine's admission.

`conservativeness` is SGLang's --schedule-conservativeness (1 = its default). Peers get the settings that
their own documentation names and some around them; nobody gets more settings than the most tunable peer.
"""

from __future__ import annotations

from itertools import product
from typing import Any

CONSERVATIVENESS = (1.0, 0.3)

TUNABLES: dict[str, dict[str, tuple[Any, ...]]] = {
    "predictive": {"safety": (0.5, 1.0), "buffer": (0.1, 0.0)},
    "static": {"max_running": (0, 64, 128)},
    "round_robin": {"sticky": (True, False), "max_running": (0, 128)},
    "least_inflight": {"sticky": (True, False), "max_running": (0, 128)},
    "sticky": {"by_group": (False, True), "max_running": (0, 128)},
    "reserve": {"budget_coef": (1.0, 0.5, 0.35, 0.25, 0.18, 0.12)},
    "aimd": {"initial": (0, 128), "soft_cap": (0.8, 0.95)},
    "thunder": {"buffer_tokens": (100, 0, 1000, 3000)},
}

Setting = dict[str, Any]


def settings(policy: str) -> list[Setting]:
    """Every setting of the policy; the first is its default on a default engine."""
    axes = TUNABLES[policy]
    own = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [{**setting, "conservativeness": c} for c, setting in product(CONSERVATIVENESS, own)]
