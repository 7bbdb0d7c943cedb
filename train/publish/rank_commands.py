"""Commands to all ranks of the learner that gather its weights: into a copy, a stream, or files."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import LiveWeights, WeightSource
from rocstar.train.learner import checkpoint
from rocstar.train.learner.adapters import MergedWeights, has_adapters, weights_of
from rocstar.train.learner.commands import LearnerRank, RankCommand, RankReply
from rocstar.train.learner.gather import planned, whole_buckets, write_owned
from rocstar.train.learner.team import LearnerTeam


class PublishError(Exception):
    """Some node does not serve the new weights: the run cannot go on."""


@dataclass(frozen=True, slots=True)
class FullWeights(RankCommand[list[tuple[str, Tensor]]]):
    """Gather the complete weights for the engine's copy on the first rank of each node.

    With a `version`, the engines of other nodes serve them as that by then. PublishError: one could not.
    """

    version: int | None

    def execute(self, rank: LearnerRank) -> list[tuple[str, Tensor]]:
        world, serve = rank.world, rank.learner.engine.serve
        keeps = world.rank == 0 or serve is not None
        weights = checkpoint.full_weights(rank.learner.model, rank.served_dtype, keeps=keeps)
        if world.has_nodes and self.version is not None:
            problem = serve(self.version, weights) if serve else None
            problems: list[str | None] = [None] * world.size
            dist.all_gather_object(problems, problem)
            if any(problems):
                text = "; ".join(f"rank {k}: {problem}" for k, problem in enumerate(problems) if problem)
                raise PublishError(f"version {self.version} is not served on every node: {text}")
        return weights


@dataclass(frozen=True, slots=True)
class SendWeights(RankCommand[list[RankReply]]):
    """Gather the weights in the served dtype, bucket by bucket, into `stream` on rank 0 and into the stream
    of each other node's engine.

    Returns when the outcome of serving is known, with a reply of each rank that has a stream: False if it
    waits for the files.
    """

    stream: WeightStream | None

    def shares(self, ranks: int) -> Sequence[SendWeights]:
        return [self, *(SendWeights(None) for _ in range(ranks - 1))]

    def execute(self, rank: LearnerRank) -> list[RankReply]:
        stream, rank.stream = self.stream or rank.stream, None
        model = rank.learner.model
        if stream is None:
            deque(whole_buckets(model, rank.served_dtype, keeps=False), maxlen=0)
            return rank.gather_replies(None)
        try:
            for bucket in whole_buckets(model, rank.served_dtype):
                stream.put(bucket)
                del bucket  # this bucket is sent while the next is gathered, and freed after that
        finally:
            stream.end()
        return rank.gather_replies(stream.outcome)


@dataclass(frozen=True, slots=True)
class WriteWeights(RankCommand[None]):
    """Write the weights in `dtype` as safetensors into `folder`, which all ranks see; each rank some of them,
    tensor by tensor. OSError: a rank could not."""

    folder: Path
    dtype: torch.dtype

    def execute(self, rank: LearnerRank) -> None:
        world = rank.world
        problem = write_owned(self.folder, planned(rank.learner.model, world.size, self.dtype), world.rank)
        if world.size == 1:
            if problem:
                raise problem
            return
        problems = world.gather(str(problem) if problem else None)
        if text := "; ".join(f"rank {k}: {problem}" for k, problem in enumerate(problems) if problem):
            raise OSError(text)


async def weight_source(team: LearnerTeam, version: int | None = None) -> WeightSource | None:
    """Return the learner's weights; None if engine and learner share the tensors.

    Adapters are merged tensor by tensor on request. `version`: see `FullWeights`.
    """
    if has_adapters(team.learner.model):
        return MergedWeights(team.learner.model)
    if not team.learner.policy.is_sharded:
        return None
    weights = await team.run(FullWeights(version))
    return LiveWeights(weights)


def weight_shapes(team: LearnerTeam) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights, in sending order."""
    return {weight.name: tuple(weight.parameter.shape) for weight in weights_of(team.learner.model)}
