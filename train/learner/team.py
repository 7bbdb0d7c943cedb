"""All ranks of the learner behind one object.

    rank 0: event loop --(device thread)--> scatter commands --> every rank executes its share
    others: follow(): receive a command, execute it, receive the next; `Stop` ends them

The other ranks wait for rank 0's call before each command (store_channel.py), as long as it lives; rank 0's loop
waits for the device thread. All collectives of rank 0 run in that one thread, so their order is equal on
every rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from rocstar.train.learner import checkpoint
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.batch import MicroBatch
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.commands import (
    CommandNodes,
    ExecuteOnNode,
    FinishSaving,
    ForwardBackward,
    LearnerRank,
    LoadOptimizer,
    MeasureBatch,
    NodeCommand,
    OptimStep,
    PolicyStep,
    RankCommand,
    RankReply,
    Result,
    Save,
    Stop,
    UseOptimizer,
)
from rocstar.train.learner.learner import LossSettings, NonFiniteGradientError
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.model_io import row_cost
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.token_stats_writer import TokenStatsPath
from rocstar.train.learner.world import World
from rocstar.train.recipe.model_config import ModelConfig

ALIGNED = 64
"""Alignment of a column in bytes, for computing with it in place."""
IN_FLIGHT = 4
"""Messages that are copied and not yet received: so many ranks' columns exist twice at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterHeader:
    """The first message, which is small."""

    pickled: bytes
    sizes: list[int]
    """Bytes of each column."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the message that follows; 0 without one."""
        return sum(map(_padded, self.sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterMessage:
    """A command to one rank. It refers to the command's arrays, which must not change until it is sent.

    Invariant: `unpack_message` of header and message is equal to the command, every bit of every column.
    """

    header: ScatterHeader
    columns: Sequence[pickle.PickleBuffer]

    @staticmethod
    def of(command: Any) -> ScatterMessage:
        columns: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(command, protocol=5, buffer_callback=columns.append)
        sizes = [column.raw().nbytes for column in columns]
        return ScatterMessage(header=ScatterHeader(pickled=pickled, sizes=sizes), columns=columns)

    def buffer(self) -> Tensor:
        """Return all columns in one buffer of bytes, each where `unpack_message` reads it."""
        buffer = torch.empty(self.header.num_bytes, dtype=torch.uint8)
        room: memoryview = buffer.numpy().data
        for column, (start, end) in zip(self.columns, _places(self.header.sizes), strict=True):
            room[start:end] = column.raw()
        return buffer


def unpack_message(header: ScatterHeader, message: Tensor) -> Any:
    """Return the command; its columns are views of the message."""
    room: memoryview = message.numpy().data
    return pickle.loads(header.pickled, buffers=[room[a:b] for a, b in _places(header.sizes)])


def scatter(commands: Sequence[Any]) -> None:
    """Send every rank its command, in the order of ranks; a collective of rank 0, which keeps the first."""
    messages = [ScatterMessage.of(command) for command in commands[1:]]
    headers: list[Any] = [None, *(message.header for message in messages)]
    dist.scatter_object_list([None], headers, src=0)
    sending: deque[tuple[Any, Tensor]] = deque()
    for rank, message in enumerate(messages, 1):
        if message.header.num_bytes:
            buffer = message.buffer()
            sending.append((dist.isend(buffer, dst=rank), buffer))
        if len(sending) == IN_FLIGHT:
            sending.popleft()[0].wait()
    for work, _ in sending:
        work.wait()


def receive() -> Any:
    """Return the command of `scatter` for this rank, which is not rank 0."""
    headers: list[Any] = [None]
    dist.scatter_object_list(headers, None, src=0)
    header: ScatterHeader = headers[0]
    message = torch.empty(header.num_bytes, dtype=torch.uint8)
    if header.num_bytes:
        dist.recv(message, src=0)
    return unpack_message(header, message)


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield start, start + size
        start += _padded(size)


T = TypeVar("T")


class NodeCommandError(Exception):
    """A rank other than rank 0 could not execute a command for its node; the message says which and why."""


class LearnerTeam:
    """The learner on every rank, led by rank 0.

    Invariant: every rank executes the same commands in the same order with the same number of microbatches.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        world: World,
        thread: ThreadPoolExecutor,
        config: ModelConfig | None = None,
        *,
        execute_on_node: ExecuteOnNode | None = None,
    ) -> None:
        """`config`: of the recipe, if the team's weights are served. `execute_on_node`: of the first rank of
        another node."""
        self.world, self._thread = world, thread
        self.rank = LearnerRank(model, world, config, execute_on_node)
        self.learner, self.writer = self.rank.learner, self.rank.checkpoint_writer

    @property
    def row_cost(self) -> Cost:
        """The learner model's cost of a row."""
        return row_cost(self.learner.model)

    # ---- rank 0, in the learner's thread ----

    def execute(self, command: RankCommand[Result]) -> Result:
        """Have every rank execute `command`; return rank 0's result."""
        return self.rank.execute(self._scatter(command))

    def command_nodes(self, command: NodeCommand) -> list[RankReply]:
        """Have every other node execute `command`, all at once; return their replies by rank.

        Raises NodeCommandError if one could not, ServerLost if one is gone.
        """
        line = self.world.line
        if line is not None:
            line.tell(command)  # they begin at once
        replies = self.execute(CommandNodes(command))
        return check_replies([*replies, *([] if line is None else line.replies())])

    def _scatter(self, command: RankCommand[Result]) -> RankCommand[Result]:
        """Send each other rank its share; return rank 0's."""
        shares = command.shares(self.world.size)
        if self.world.size > 1:
            self.world.called()
            scatter(shares)
        return shares[0]

    # ---- rank 0, on the event loop ----

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Do `work` in the learner's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def run(self, command: RankCommand[Result]) -> Result:
        """Have every rank execute `command`; return rank 0's result."""
        return await self.in_thread(self.execute, command)

    async def use(self, spec: OptimSpec) -> None:
        await self.run(UseOptimizer(spec))

    async def policy_step(
        self,
        updates: Sequence[Sequence[MicroBatch]],
        settings: LossSettings,
        bad_before: int = 0,
        token_stats: TokenStatsPath | None = None,
    ) -> LossStats:
        """As `Learner.policy_step`, with the batch split between ranks. `token_stats`: path of each rank's
        statistics, written in the background; None for none."""
        step = PolicyStep(updates=updates, settings=settings, bad_before=bad_before, token_stats=token_stats)
        return await self.run(step)

    async def measured(self, micros: Sequence[MicroBatch], temperature: float) -> list[MicroBatch]:
        """Return the microbatches with the log-probs of the present weights as old ones."""
        return await self.run(MeasureBatch(micros, temperature))

    async def forward_backward(self, micros: Sequence[MicroBatch], settings: LossSettings | None) -> LossStats:
        """Make and clip the gradient of one update, of microbatches in the order of `pack`. None: imitation.

        Return the sums over its loss tokens, and the gradient's norm before clipping. Raise
        NonFiniteGradientError, before any weight changes, for a batch or a gradient that is not finite.
        """
        return await self.run(ForwardBackward(micros, settings))

    async def optim_step(self) -> None:
        """Change the weights by the gradient of `forward_backward`."""
        await self.run(OptimStep())

    async def imitation_step(self, micros: Sequence[MicroBatch]) -> LossStats:
        """One optimizer step of the cold start."""
        stats = await self.forward_backward(micros, None)
        await self.optim_step()
        return stats

    async def save(self, order: Order) -> None:
        """Begin a checkpoint: returns when the state is copied, while it is being written."""
        if self.world.size > 1:  # what rank 0 alone can find wrong, before the others take part
            await self.in_thread(self.writer.finish)
            await self.in_thread(checkpoint.check_space, order.directory, self.learner.model)
        await self.run(Save(order))

    async def finish_saving(self) -> None:
        """Wait until the last checkpoint is written."""
        await self.run(FinishSaving())

    def close(self) -> None:
        """Wait until a checkpoint and token statistics are written; the team does nothing after this."""
        self.writer.close()
        self.rank.stats_writer.close()

    async def load_optimizer(self, directory: Path) -> None:
        await self.run(LoadOptimizer(directory))

    async def stop(self) -> None:
        """Stop the other ranks and the serving nodes. ServerLost: a serving node died."""
        if self.world.size > 1:
            await self.in_thread(self._scatter, Stop())
        if self.world.line is not None:
            await self.in_thread(self.world.line.end)

    # ---- the other ranks ----

    def follow(self) -> None:
        """The whole life of a rank that is not 0. LeaderLost: rank 0 is gone."""
        command: RankCommand[object] | None = None
        while not isinstance(command, Stop):
            self.world.called()
            command = receive()
            # Rank 0 reports a stopped step and decides how to continue.
            with contextlib.suppress(NonFiniteGradientError):
                self.rank.execute(command)


def check_replies(replies: list[RankReply]) -> list[RankReply]:
    """Return the replies. NodeCommandError if another rank than rank 0 has a problem."""
    if problems := [f"rank {reply.rank}: {reply.problem}" for reply in replies if reply.problem and reply.rank]:
        raise NodeCommandError("; ".join(problems))
    return replies
