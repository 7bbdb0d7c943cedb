"""The published policies that ours is compared with, beside those that a recipe may choose.

rocstar sim --workload paper --peers benchmarks/scheduling/peers.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from scheduling.aimd import Aimd
from scheduling.least_inflight import LeastInflight
from scheduling.reserve import Reserve
from scheduling.sticky import Sticky

from rocstar.engine.scheduling.policies import POLICIES as CHOSEN
from rocstar.engine.scheduling.policies import PolicyFactory

PEERS: Mapping[str, PolicyFactory] = {
    "least_inflight": LeastInflight,
    "sticky": Sticky,
    "reserve": Reserve,
    "aimd": Aimd,
}
POLICIES: Mapping[str, PolicyFactory] = {**CHOSEN, **PEERS}
