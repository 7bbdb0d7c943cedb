"""Which processes of a run learn and which only serve, by what torchrun says of their roles.

    torchrun --role=server --nproc-per-node=1 ...    a node that only serves: one process, without a learner
    torchrun ...                                     a node that learns, with any other role

Those that learn have the first ranks, 0 to `learners` - 1, so their nodes have the first --node-rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rocstar.train.recipe.errors import ConfigError

SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """How many processes do what, on all nodes."""

    learners: int
    servers: int
    serves: bool
    """This process only serves."""
    learners_per_node: int
    """0 where this process cannot know: on a node that only serves."""

    @staticmethod
    def of(environment: Mapping[str, str] = os.environ) -> Roles:
        """Without torchrun one process learns. ConfigError for another form of torchrun's environment."""
        size = int(environment.get("WORLD_SIZE", "1"))
        alike = int(environment.get("ROLE_WORLD_SIZE", str(size)))
        serves = environment.get("ROLE_NAME") == SERVER
        local = int(environment.get("LOCAL_WORLD_SIZE", str(size)))
        learners = size - alike if serves else alike
        if serves and (not learners or local > 1):
            raise ConfigError(
                f"torchrun --role=server with {local} processes here and {learners} that learn elsewhere: a "
                "node that only serves has one process, --nproc-per-node=1, and some other node learns"
            )
        if (int(environment.get("RANK", "0")) >= learners) is not serves:
            raise ConfigError(
                "torchrun --role=server: the nodes that only serve come last; give the nodes that learn the "
                "first numbers, --node-rank=0 and so on"
            )
        return Roles(
            learners=learners,
            servers=size - learners,
            serves=serves,
            learners_per_node=0 if serves else local,
        )
