"""The commands of rank 0 to every rank of the learner, and the rank that executes them.

LearnerTeam.run(command) ── one share per rank ──> every rank: command.execute(rank)
                         <── the result of rank 0's share
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.train.learner import checkpoint
from rocstar.train.learner.batch import MicroBatch, share_out
from rocstar.train.learner.checkpoint_writer import CheckpointWriter, Order
from rocstar.train.learner.learner import BadMicroBatch, Learner, LossSettings, NonFiniteGradientError
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.memory_release import ReleasedMemory
from rocstar.train.learner.model_io import DTYPES, HEAD_DTYPES
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.sharding import load_learner
from rocstar.train.learner.store_channel import travels
from rocstar.train.learner.token_stats_writer import TokenStatsBuffer, TokenStatsPath, TokenStatsWriter
from rocstar.train.learner.world import World
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.model_config import ModelConfig

Result = TypeVar("Result")


class NodeCommand:
    """A command to the engine of a node, executed by the node's first rank, or by a node that only serves."""

    __slots__ = ()


NodeAnswer = str | WeightStream | None
"""The answer of a node's engine. A stream stays on the node: its learner gathers the next weights into it."""
ExecuteOnNode = Callable[[NodeCommand], NodeAnswer]
"""Executes a node's command and returns the answer; called in the learner's thread."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class RankReply:
    """The reply of one rank: an answer, or what went wrong."""

    rank: int
    answer: str | bool | None = None
    problem: str = ""

    @staticmethod
    def of(rank: int, work: Callable[[], str | bool | None]) -> RankReply:
        """Do the work and reply. Its error is the reply to rank 0, which decides."""
        try:
            return RankReply(rank=rank, answer=work())
        except Exception as error:
            return RankReply(rank=rank, problem=f"{type(error).__name__}: {error}")


class LearnerRank:
    """This rank's part of the learner, on which commands are executed."""

    def __init__(
        self, model: PreTrainedModel, world: World, config: ModelConfig | None, execute_on_node: ExecuteOnNode | None
    ) -> None:
        self.world, self.execute_on_node = world, execute_on_node
        self.learner = Learner(
            model,
            world_size=world.size,
            head_dtype=HEAD_DTYPES["model" if config is None else config.head_dtype],
            offloads_moments=config is not None and config.offload_moments,
        )
        self.served_dtype = None if config is None else DTYPES[config.dtype]
        """The dtype of served weights; None: the learner's own."""
        group = dist.new_group(backend="gloo") if world.size > 1 else None
        self.checkpoint_writer = CheckpointWriter(rank=world.rank, group=group)
        self.stats_writer = TokenStatsWriter(world.rank, world.size)
        self.stream: WeightStream | None = None
        """The stream of this node's engine for the weights that are gathered next."""
        self.released: ReleasedMemory | None = None
        """The memory that this rank released last."""

    def execute(self, command: RankCommand[Result]) -> Result:
        if self.learner.device.type == "cuda":
            torch.cuda.set_device(self.learner.device)  # of this thread; each begins at GPU 0
        return command.execute(self)

    def gather_replies(self, work: Callable[[], str | bool | None] | None) -> list[RankReply]:
        """Do `work` on the ranks that have it; return their replies on rank 0. A collective of all ranks."""
        reply = None if work is None else RankReply.of(self.world.rank, work)
        replies = self.world.gather(reply) if self.world.size > 1 else [reply]
        return [reply for reply in replies if reply is not None]


class RankCommand(ABC, Generic[Result]):
    """Work of every rank, in the learner's thread."""

    __slots__ = ()

    @abstractmethod
    def execute(self, rank: LearnerRank) -> Result:
        """Do one rank's share; rank 0's result is that of the command."""

    def shares(self, ranks: int) -> Sequence[RankCommand[Result]]:
        """Return each rank's share; by default every rank executes the command itself."""
        return [self] * ranks


@dataclass(frozen=True, slots=True)
class Stop(RankCommand[None]):
    """End `LearnerTeam.follow`."""

    def execute(self, rank: LearnerRank) -> None:
        rank.stats_writer.close()


@dataclass(frozen=True, slots=True)
class UseOptimizer(RankCommand[None]):
    """Reset the optimizer state."""

    spec: OptimSpec

    def execute(self, rank: LearnerRank) -> None:
        rank.learner.use(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep(RankCommand[LossStats]):
    """One step of `Learner.policy_step`. Token statistics go to `token_stats` while the next steps run."""

    updates: Sequence[Sequence[MicroBatch]]
    settings: LossSettings
    bad_before: int
    token_stats: TokenStatsPath | None

    def shares(self, ranks: int) -> Sequence[PolicyStep]:
        shares = [share_out(micros, ranks) for micros in self.updates]
        return [replace(self, updates=[share[rank] for share in shares]) for rank in range(ranks)]

    def execute(self, rank: LearnerRank) -> LossStats:
        return _reduce(rank.world, lambda: self._step(rank))

    def _step(self, rank: LearnerRank) -> LossStats:
        problem = rank.stats_writer.settle()
        learner = rank.learner
        learner.token_stats = None if self.token_stats is None else TokenStatsBuffer()
        stats = learner.policy_step(self.updates, self.settings, self.bad_before)
        stats.unwritten = [problem] if problem else []
        if self.token_stats is not None and learner.token_stats is not None:
            rank.stats_writer.begin(self.token_stats, learner.token_stats)
            learner.token_stats = None
        return stats


@dataclass(frozen=True, slots=True)
class MeasureBatch(RankCommand[list[MicroBatch]]):
    """`Learner.measured`; the result is on rank 0, in the order of the microbatches."""

    micros: Sequence[MicroBatch]
    temperature: float

    def shares(self, ranks: int) -> Sequence[MeasureBatch]:
        return [replace(self, micros=share) for share in share_out(self.micros, ranks)]

    def execute(self, rank: LearnerRank) -> list[MicroBatch]:
        rank.learner.check(self.micros)
        measured = rank.learner.measured(self.micros, self.temperature)
        shares = rank.world.gather(measured) if rank.world.size > 1 else [measured]
        return [micro for one in zip(*shares, strict=True) for micro in one if micro.num_loss_tokens]


@dataclass(frozen=True, slots=True)
class ForwardBackward(RankCommand[LossStats]):
    """`Learner.forward_backward`, of microbatches that are checked first."""

    micros: Sequence[MicroBatch]
    settings: LossSettings | None

    def shares(self, ranks: int) -> Sequence[ForwardBackward]:
        return [replace(self, micros=share) for share in share_out(self.micros, ranks)]

    def execute(self, rank: LearnerRank) -> LossStats:
        def step() -> LossStats:
            rank.learner.check(self.micros)
            return rank.learner.forward_backward(self.micros, self.settings)[0]

        return _reduce(rank.world, step)


@dataclass(frozen=True, slots=True)
class OptimStep(RankCommand[None]):
    """`Learner.optim_step`."""

    def execute(self, rank: LearnerRank) -> None:
        rank.learner.optim_step()


@dataclass(frozen=True, slots=True)
class Greedy(RankCommand[tuple[list[int], list[float]]]):
    """Continue `ids` greedily; see `Learner.greedy`."""

    ids: Sequence[int]
    num_tokens: int

    def execute(self, rank: LearnerRank) -> tuple[list[int], list[float]]:
        return rank.learner.greedy(self.ids, self.num_tokens)


@dataclass(frozen=True, slots=True)
class ReleaseMemory(RankCommand[None]):
    """Release the learner's memory between updates; `LearnerRank.released` has the bytes."""

    def execute(self, rank: LearnerRank) -> None:
        rank.released = rank.learner.release_memory()


@dataclass(frozen=True, slots=True)
class Save(RankCommand[None]):
    """Begin a checkpoint: done when the state is copied."""

    order: Order

    def execute(self, rank: LearnerRank) -> None:
        rank.checkpoint_writer.begin(self.order, rank.learner)


@dataclass(frozen=True, slots=True)
class FinishSaving(RankCommand[None]):
    """Wait until the last checkpoint is written."""

    def execute(self, rank: LearnerRank) -> None:
        rank.checkpoint_writer.finish()


@dataclass(frozen=True, slots=True)
class LoadOptimizer(RankCommand[None]):
    """Load the optimizer state of a checkpoint."""

    directory: Path

    def execute(self, rank: LearnerRank) -> None:
        checkpoint.load_optimizer(self.directory, rank.learner)


@dataclass(frozen=True, slots=True)
class LoadStart(RankCommand[None]):
    """Load this rank's part of the policy in a checkpoint as the start policy."""

    directory: Path
    recipe: Recipe

    def execute(self, rank: LearnerRank) -> None:
        mesh = getattr(next(rank.learner.model.parameters()), "device_mesh", None)
        model = load_learner(str(self.directory), rank.world, self.recipe, mesh=mesh)
        model.requires_grad_(False)
        head_dtype = rank.learner.policy.head_dtype
        rank.learner.start = Learner(model, world_size=rank.world.size, head_dtype=head_dtype)


@dataclass(frozen=True, slots=True)
class CommandNodes(RankCommand[list[RankReply]]):
    """Have the first rank of every other node execute a node's command."""

    command: NodeCommand

    def execute(self, rank: LearnerRank) -> list[RankReply]:
        execute_on_node = rank.execute_on_node

        def work() -> str | None:
            assert execute_on_node is not None
            answer = execute_on_node(self.command)
            if isinstance(answer, WeightStream):
                rank.stream = answer
                return None
            return answer

        return rank.gather_replies(None if execute_on_node is None else work)


def _reduce(world: World, step: Callable[[], LossStats]) -> LossStats:
    """Sum a step's statistics over ranks; gradient norms, mismatch and the gate's decision are global."""
    if world.size == 1:
        return step()
    try:
        stats = step()
    except NonFiniteGradientError as error:  # on every rank
        parts: list[list[BadMicroBatch]] = [[]] * world.size
        dist.all_gather_object(parts, error.parts)
        raise NonFiniteGradientError(str(error), [part for ranks in parts for part in ranks]) from None
    total, gathered = replace(stats, worst=[], unwritten=[]), [stats] * world.size
    dist.all_gather_object(gathered, stats)
    for name in LossStats.SUMS:
        setattr(total, name, sum(getattr(one, name) for one in gathered))
    total.max_ratio = max(one.max_ratio for one in gathered)
    for one in gathered:
        total.keep_worst(one.worst)
        total.unwritten += one.unwritten
    return total
