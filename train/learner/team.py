"""All ranks of the learner behind one object.

    rank 0: event loop --(device thread)--> scatter (verb, payload) --> every rank runs it --> reduce stats
            columns of a payload go as bytes, one message a rank (parcel.py)
    others: follow(): wait for a verb, run it, wait for the next; `stop` ends them

The other ranks wait for rank 0's call before each scatter (leader.py), as long as it lives; rank 0's loop
waits for the device thread. All collectives of rank 0 run in that one thread, so their order is equal on
every rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import LiveWeights, WeightSource
from rocstar.train.learner import activations, checkpoint
from rocstar.train.learner.adapters import MergedWeights, has_adapters, weights_of
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.batch import MicroBatch, share_out
from rocstar.train.learner.checkpoint_writer import CheckpointWriter, Order
from rocstar.train.learner.freed import Freed
from rocstar.train.learner.gather import planned, whole_buckets
from rocstar.train.learner.leader import BEAT_S, SILENT_S, Leader
from rocstar.train.learner.learner import BadMicroBatch, Learner, LossSettings, NonFiniteGradientError
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.marks import MarksPlace, MarksWriter, TokenMarks
from rocstar.train.learner.model_io import DTYPES, HEAD_DTYPES
from rocstar.train.learner.model_size import row_cost
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.parcel import Parcel, ParcelHeader, unpacked
from rocstar.train.learner.policy_model import check_head, checkpoint_activations
from rocstar.train.learner.roles import Roles
from rocstar.train.learner.store_line import StoreLine, travels
from rocstar.train.learner.weight_file import write_owned
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.model_config import ModelConfig

JOIN_TIMEOUT = timedelta(minutes=15)
"""The time every rank has to be there."""
COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""Timeout of one collective, which begins after rank 0's call: it covers only work of the learner."""


Serve = Callable[[int, list[tuple[str, Tensor]]], str | None]
"""Has an engine serve weights as a version; returns what went wrong, None if nothing did."""


class PublishError(Exception):
    """Some node does not serve the new weights: the run cannot go on."""


DoOrder = Callable[[Any], Any]
"""Executes an order of rank 0 and returns the answer; called in the learner's thread."""


class OrderError(Exception):
    """The first rank of some node could not do what rank 0 ordered; the message says which and why."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class RankReply:
    """The reply of the first rank of another node to an order: an answer, or what went wrong."""

    rank: int
    answer: Any = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among those torchrun started; size 1 without torchrun."""

    rank: int
    size: int
    local_size: int = 1
    """Ranks on this machine."""
    local_rank: int = 0
    leader: Leader | None = None
    """None where there is one rank."""
    servers: int = 0
    """Nodes that only serve, each with one process; these are not among the ranks of `size`."""
    line: StoreLine | None = None
    """Between rank 0 and those; None on the ranks that learn but 0, and where there are none."""

    @staticmethod
    def join() -> World:
        """Read torchrun's environment and connect: gloo on the CPU, NCCL or RCCL on GPUs.

        A node that only serves joins no group: it hears of rank 0 through the store alone.

        TrainingStopped: after JOIN_TIMEOUT a rank has not come, for it could not begin. ConfigError: see
        Roles.
        """
        roles = Roles.of()
        size = roles.learners
        if size + roles.servers == 1:
            return World(rank=0, size=1)
        if roles.servers and (roles.serves or size == 1):
            return World._beside_servers(roles)
        if (device := local_device()).type == "cuda":
            torch.cuda.set_device(device)
        rank = int(os.environ["RANK"])
        any_dist: Any = dist  # torch has no types for its stores
        all_here = _all_here(rank, size + roles.servers)
        leader = Leader(all_here, beat_s=BEAT_S, silent_s=SILENT_S)
        if rank == 0:
            leader.begin()
        store = any_dist.PrefixStore("group", all_here)
        dist.init_process_group(
            _backend(), store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
        )
        return World(
            rank=rank,
            size=size,
            local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            leader=leader,
            servers=roles.servers,
            line=_line(all_here, rank, roles),
        )

    @staticmethod
    def _beside_servers(roles: Roles) -> World:
        """The world of a process without collectives: it only serves, or learns alone."""
        rank, size = int(os.environ["RANK"]), roles.learners
        line = _line(_all_here(rank, size + roles.servers), rank, roles)
        return World(rank=rank, size=size, servers=roles.servers, line=line)

    @property
    def only_serves(self) -> bool:
        """This process has no part of the learner."""
        return self.rank >= self.size

    @property
    def has_nodes(self) -> bool:
        """There are several, and the first rank of each rolls out (nodes.py)."""
        return self.local_size < self.size or self.servers > 0

    def threads(self, wanted: int, *, alone: bool = False) -> int:
        """torch threads of this process: `wanted`, or for 0 its share of the machine; all of it when `alone`.

        torchrun sets OMP_NUM_THREADS=1 and so hides what torch would take: a cold start on rank 0 alone
        must take the same as one process, or its rounding differs.
        """
        if wanted or self.size == 1:
            return wanted or torch.get_num_threads()
        return num_cores() if alone else max(1, num_cores() // self.local_size)

    def leave(self) -> None:
        if self.line is not None:
            self.line.stop()
        if self.leader is not None:
            self.leader.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    def called(self) -> None:
        """Begin a collective that rank 0 leads: it calls, and the others wait for the call."""
        if self.leader is None:
            return
        if self.rank == 0:
            self.leader.call()
        else:
            self.leader.await_call()

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank and every node that only serves. LeaderLost: rank 0 is gone."""
        if self.line is not None:
            if self.only_serves:
                return self.line.hear()
            self.line.tell(value)
        if self.size == 1:
            return value
        self.called()
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value by rank, on rank 0; empty on the others."""
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, found, dst=0)
        return found or []


def _all_here(rank: int, size: int) -> Any:
    """torchrun's store, when every rank has come to it."""
    any_dist: Any = dist
    try:
        store, _, _ = next(any_dist.rendezvous("env://", rank, size, timeout=JOIN_TIMEOUT))
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(size)], JOIN_TIMEOUT)
    except any_dist.DistError as error:
        raise TrainingStopped(
            f"not all of the {size} ranks came within {JOIN_TIMEOUT.total_seconds():.0f} s; the output of "
            f"those that did not says why, or torchrun was not started on every node ({error})"
        ) from None
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _line(store: Any, rank: int, roles: Roles) -> StoreLine | None:
    if not roles.servers or (rank and not roles.serves):
        return None
    return StoreLine(store, rank=rank, servers=range(roles.learners, roles.learners + roles.servers))


def num_cores() -> int:
    """Physical cores this process may use: what torch takes by default."""
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    paths = [Path(siblings.format(cpu)) for cpu in os.sched_getaffinity(0)]
    return len({path.read_text() if path.is_file() else str(path) for path in paths})


def local_device() -> torch.device:
    """Where this process learns: the GPU of its LOCAL_RANK, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def _backend() -> str:
    """Verbs and sums travel as CPU objects also where the weights are on GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def placed(model: PreTrainedModel, config: ModelConfig) -> PreTrainedModel:
    """The model as an engine of this process runs it: on its device, in the type of the recipe."""
    any_model: Any = model  # transformers has no types for it
    result: PreTrainedModel = any_model.to(local_device(), DTYPES[config.dtype])
    return result


def is_apart(world: World, config: ModelConfig) -> bool:
    """Whether the learner's weights are its own: sharded, or of another type than those that are served."""
    return world.size > 1 or config.dtype != "float32"


def shard(
    model: PreTrainedModel,
    world: World,
    config: ModelConfig,
    *,
    tokens_per_microbatch: int = 0,
    mesh: DeviceMesh | None = None,
) -> None:
    """Make a float32 model one rank's part of the learner, on its device. ConfigError: see `check_head`.

    FSDP2 over the ranks of `mesh.py` where `is_apart`: each decoder layer is a unit, the embedding and the
    head are the root's. With dtype bfloat16 forward and backward run in it, on a copy that FSDP makes of the
    float32 weights unit by unit; gradients are summed over ranks, and weights and moments kept, in float32.
    A single process uses a world of one, so that there is one kind of mixed precision.

    Parameters on the meta device stay there, sharded, until load_parts.py fills them.

    Args:
        model: changed in place.
        world: the ranks that learn.
        config: the recipe's.
        tokens_per_microbatch: used by "auto" activation checkpointing.
        mesh: the mesh of another model on the same ranks, because groups of two meshes can deadlock; None
            makes one.
    """
    check_head(model)
    any_model: Any = model  # transformers has no types for these
    layers = any_model.get_decoder().layers
    if runs_layers_again(model, world, config, tokens_per_microbatch):
        checkpoint_activations(model)
    if not is_apart(world, config):
        any_model.to(local_device())
        return

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from rocstar.train.learner.mesh import make_mesh, mesh_shape

    if not dist.is_initialized():
        dist.init_process_group(_backend(), store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if mesh is None:
        mesh = make_mesh(local_device().type, mesh_shape(config.sharding, world.size, world.local_size))
    # The inputs of a forward are ids, and hidden states of the right type already.
    precision = MixedPrecisionPolicy(
        param_dtype=DTYPES[config.dtype], reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


def place_adapted(
    model: PreTrainedModel, world: World, config: ModelConfig, *, tokens_per_microbatch: int = 0
) -> None:
    """Make a model with adapters one rank's learner, on its device. ConfigError: see `check_head`.

    Nothing is sharded: frozen weights need neither gradients nor moments, and every rank holds them in the
    served type; adapters are equal on all ranks, because their gradients are summed.
    """
    check_head(model)
    if runs_layers_again(model, world, config, tokens_per_microbatch):
        checkpoint_activations(model)
    any_model: Any = model  # transformers has no types for it
    any_model.to(local_device())


def runs_layers_again(model: PreTrainedModel, world: World, config: ModelConfig, tokens: int) -> bool:
    """Resolve model.activation_checkpointing for this model on this device."""
    held = sum(p.numel() * (16 if p.requires_grad else p.element_size()) for p in model.parameters())
    adapted = has_adapters(model)
    holders = 1 if adapted else world.local_size if config.sharding == "node" else world.size
    kept = activations.kept_bytes(
        model.config.get_text_config(),
        DTYPES[config.dtype].itemsize,
        tokens,
        inputs_alone=False,
        adapted=adapted,
    )
    needed = held / holders + kept
    device = activations.device_bytes(local_device(), world.local_size)
    return activations.keep_inputs_alone(config.activation_checkpointing, needed, device)


def _replies(replies: list[RankReply]) -> list[RankReply]:
    """The same. OrderError where another rank than 0, which knows of its own, could not."""
    if problems := [
        f"rank {reply.rank}: {reply.problem}" for reply in replies if reply.problem and reply.rank
    ]:
        raise OrderError("; ".join(problems))
    return replies


IN_FLIGHT = 4
"""Messages that are copied and not yet taken: so many ranks' columns exist twice at a time."""


def send_messages(parcels: Sequence[Parcel], ranks: Sequence[int]) -> None:
    """Send each rank its parcel's columns, in order; this rank's own, and those without any, stay here."""
    flying: deque[tuple[Any, Tensor]] = deque()
    for parcel, rank in zip(parcels, ranks, strict=True):
        if rank == dist.get_rank() or not parcel.header.num_bytes:
            continue
        message = parcel.message()
        flying.append((dist.isend(message, dst=rank), message))
        if len(flying) == IN_FLIGHT:
            flying.popleft()[0].wait()
    for sending, _ in flying:
        sending.wait()


class LearnerTeam:
    """The learner on every rank, driven by rank 0.

    Invariant: every rank runs the same verbs in the same order with the same number of microbatches.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        world: World,
        thread: ThreadPoolExecutor,
        config: ModelConfig | None = None,
    ) -> None:
        """`config`: of the recipe, where the team's weights are served."""
        self.world, self._thread = world, thread
        head_dtype = HEAD_DTYPES["model" if config is None else config.head_dtype]
        self.learner = Learner(model, world_size=world.size, head_dtype=head_dtype)
        self.learner.offloads_moments = config is not None and config.offload_moments
        group = dist.new_group(backend="gloo") if world.size > 1 else None
        self.writer = CheckpointWriter(rank=world.rank, group=group)
        self._marks = MarksWriter(world.rank, world.size)
        self.serve: Serve | None = None
        """Has the engine of another node serve weights, on its first rank; returns when it does."""
        self.do_order: DoOrder | None = None
        """Does what `order` says, on the first rank of another node."""
        self.stream: WeightStream | None = None
        """Where `send_weights_here` puts the weights on this rank; it is let go of then."""
        self.served_dtype = None if config is None else DTYPES[config.dtype]
        """The type in which `full_weights` and `send_weights_here` gather; None = the learner's own."""
        self.freed: Freed | None = None
        """Memory that this rank released last."""
        self._verbs: dict[str, Callable[..., Any]] = {
            "use": lambda *given: self.learner.use(*given),
            "policy_step": lambda *given: self._reduce(self._policy_step, *given),
            "imitation_step": lambda *given: self._reduce(self.learner.imitation_step, *given),
            "full_weights": self._full_weights,
            "send_weights": self._send_weights,
            "write_weights": self._write_weights,
            "give_back": self._give_back,
            "order": self._order,
            "greedy": lambda *given: self.learner.greedy(*given),
            "save": self._save,
            "finish_saving": self.writer.finish,
            "load_optimizer": self._load_optimizer,
            "load_start": self._load_start,
        }
        """Execute the payload that rank 0 scatters; `stop` ends `follow`."""

    @property
    def row_cost(self) -> Cost:
        """The learner model's cost of a row."""
        return row_cost(self.learner.model)

    # ---- rank 0, on the event loop ----

    async def use(self, spec: OptimSpec) -> None:
        await self._everywhere("use", [(spec,)] * self.world.size)

    async def policy_step(
        self,
        updates: Sequence[Sequence[MicroBatch]],
        settings: LossSettings,
        bad_before: int = 0,
        marks: MarksPlace | None = None,
    ) -> LossStats:
        """As `Learner.policy_step`, with the batch shared out to ranks. `marks`: path of each rank's token
        statistics, written in the background; None for none."""
        shares = [share_out(micros, self.world.size) for micros in updates]
        ranks = range(self.world.size)
        payloads = [([share[rank] for share in shares], settings, bad_before, marks) for rank in ranks]
        stats: LossStats = await self._everywhere("policy_step", payloads)
        return stats

    async def imitation_step(self, micros: Sequence[MicroBatch]) -> LossStats:
        shares = share_out(micros, self.world.size)
        stats: LossStats = await self._everywhere("imitation_step", [(share,) for share in shares])
        return stats

    async def full_weights(self, version: int | None = None) -> list[tuple[str, Tensor]] | None:
        """Unsharded weights for the engine's copy; None where engine and learner share them.

        With a `version`, the engines of other nodes serve them as that by then. PublishError: one could not.
        """
        if not self.learner.policy.is_sharded:
            return None
        payloads = [(version,)] * self.world.size
        weights: list[tuple[str, Tensor]] = await self._everywhere("full_weights", payloads)
        return weights

    async def source(self, version: int | None = None) -> WeightSource | None:
        """Return the weights tensor by tensor; with adapters each is merged on request."""
        if has_adapters(self.learner.model):
            return MergedWeights(self.learner.model)
        weights = await self.full_weights(version)
        return None if weights is None else LiveWeights(weights)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights, in sending order."""
        return {weight.name: tuple(weight.parameter.shape) for weight in weights_of(self.learner.model)}

    def send_into(self, stream: WeightStream) -> None:
        """Send the buckets of the next `send_weights_here` on this rank into `stream`."""
        self.stream = stream

    def send_weights_here(self) -> list[RankReply]:
        """Gather the weights in the served type, bucket by bucket, into the `stream` of every rank that has
        one. Called in the learner's thread; returns when the outcome of serving is known, with a reply of
        each
        rank: False if it waits for the files.

        Raises OrderError if another node does not serve them.
        """
        payloads = [()] * self.world.size
        return _replies(self._run("send_weights", self._scatter("send_weights", payloads)))

    async def write_weights(self, folder: Path, dtype: torch.dtype) -> None:
        """See `write_weights_here`."""
        await self._in_thread(self.write_weights_here, folder, dtype)

    def write_weights_here(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the weights in `dtype` as safetensors into `folder`, which all ranks see; each rank some of
        them, tensor by tensor. Called in the learner's thread. OSError: one could not."""
        payload = (str(folder), dtype)
        self._run("write_weights", self._scatter("write_weights", [payload] * self.world.size))

    async def give_back(self) -> None:
        """Free the learner's memory between updates, on every rank; `freed` has the bytes of this rank."""
        await self._in_thread(self.give_back_here)

    def give_back_here(self) -> None:
        """The same, already in the learner's thread."""
        self._run("give_back", self._scatter("give_back", [()] * self.world.size))

    async def order(self, order: Any) -> list[RankReply]:
        """Have the first rank of every other node, and every node that only serves, do what `order` says, all
        at once; their replies by rank.

        OrderError: one could not. ServerLost: one is gone.
        """
        return await self._in_thread(self.order_here, order)  # type: ignore[no-any-return]

    def order_here(self, order: Any) -> list[RankReply]:
        """Release the memory; call from the learner's thread, whose work keeps its order."""
        line = self.world.line
        if line is not None:
            line.tell(order)  # they begin at once
        replies = self._run("order", self._scatter("order", [(order,)] * self.world.size))
        return _replies([*replies, *([] if line is None else line.replies())])

    async def greedy(self, ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """Continue `ids` greedily; see `Learner.greedy`."""
        payload = (list(ids), num_tokens)
        said: tuple[list[int], list[float]] = await self._everywhere("greedy", [payload] * self.world.size)
        return said

    async def save(self, order: Order) -> None:
        """Begin a checkpoint: returns when the state is copied, while it is being written."""
        if self.world.size > 1:  # what rank 0 alone can find wrong, before the others take part
            await self._in_thread(self._check_room, order)
        await self._everywhere("save", [(order,)] * self.world.size)

    def _check_room(self, order: Order) -> None:
        self.writer.finish()
        checkpoint.check_space(order.directory, self.learner.model)

    def check_saved(self) -> None:
        """Raise what made the last checkpoint fail, if it has failed by now."""
        self.writer.check()

    async def finish_saving(self) -> None:
        """Wait until the last checkpoint is written."""
        await self._everywhere("finish_saving", [()] * self.world.size)

    def close(self) -> None:
        """Let a checkpoint and marks in flight be written; the team does nothing after this."""
        self.writer.close()
        self._marks.close()

    async def load_optimizer(self, directory: Path) -> None:
        await self._everywhere("load_optimizer", [(str(directory),)] * self.world.size)

    async def load_start(self, directory: Path, recipe: Recipe) -> None:
        """Have every rank hold its part of the policy in the checkpoint `directory` as the start policy."""
        await self._everywhere("load_start", [(str(directory), recipe)] * self.world.size)

    async def stop(self) -> None:
        """Let the other ranks go home, and nodes that only serve. ServerLost: one of these is gone."""
        if self.world.size > 1:
            await self._in_thread(self._scatter, "stop", [()] * self.world.size)
        if self.world.line is not None:
            await self._in_thread(self.world.line.end)

    async def _everywhere(self, verb: str, payloads: Sequence[tuple[Any, ...]]) -> Any:
        return await self._in_thread(lambda: self._run(verb, self._scatter(verb, payloads)))

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _scatter(self, verb: str, payloads: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Every rank gets its payload; rank 0's own is returned as it is."""
        if self.world.size == 1:
            return payloads[0]
        self.world.called()
        parcels = [Parcel.of((verb, payload)) for payload in payloads]
        dist.scatter_object_list([None], [parcel.header for parcel in parcels], src=0)
        send_messages(parcels, range(self.world.size))
        return payloads[0]

    # ---- every rank ----

    def follow(self) -> None:
        """The whole life of a rank that is not 0. LeaderLost: rank 0 is gone."""
        while True:
            self.world.called()
            verb, payload = self._received()
            if verb == "stop":
                self._marks.close()
                return
            # Rank 0 reports a stopped step and decides how to continue.
            with contextlib.suppress(NonFiniteGradientError):
                self._run(verb, payload)

    def _received(self) -> tuple[str, tuple[Any, ...]]:
        """Rank 0's next verb, with this rank's payload."""
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, None, src=0)
        header: ParcelHeader = mine[0]
        message = torch.empty(header.num_bytes, dtype=torch.uint8)
        if header.num_bytes:
            dist.recv(message, src=0)
        verb, payload = unpacked(header, message)
        return verb, payload

    def _run(self, verb: str, payload: tuple[Any, ...]) -> Any:
        if self.learner.device.type == "cuda":
            torch.cuda.set_device(self.learner.device)  # of this thread; each begins at GPU 0
        return self._verbs[verb](*payload)

    def _policy_step(
        self,
        updates: Sequence[Sequence[MicroBatch]],
        settings: LossSettings,
        bad_before: int,
        place: MarksPlace | None,
    ) -> LossStats:
        """This rank's share of a step; its marks are written while the next steps go on."""
        problem = self._marks.settle()
        self.learner.marks = None if place is None else TokenMarks()
        stats = self.learner.policy_step(updates, settings, bad_before)
        stats.unwritten = [problem] if problem else []
        if place is not None and self.learner.marks is not None:
            self._marks.begin(place, self.learner.marks)
            self.learner.marks = None
        return stats

    def _load_optimizer(self, directory: str) -> None:
        checkpoint.load_optimizer(Path(directory), self.learner)

    def _load_start(self, directory: str, recipe: Recipe) -> None:
        from rocstar.train.learner.load_parts import load_learner  # it imports this module

        mesh = getattr(next(self.learner.model.parameters()), "device_mesh", None)
        model = load_learner(directory, self.world, recipe, mesh=mesh)
        model.requires_grad_(False)
        head_dtype = self.learner.policy.head_dtype
        self.learner.start = Learner(model, world_size=self.world.size, head_dtype=head_dtype)

    def _save(self, order: Order) -> None:
        self.writer.begin(order, self.learner)

    def _give_back(self) -> None:
        self.freed = self.learner.give_back()

    def _write_weights(self, folder: str, dtype: torch.dtype) -> None:
        rank, size = self.world.rank, self.world.size
        problem = write_owned(Path(folder), planned(self.learner.model, size, dtype), rank)
        if size == 1:
            if problem:
                raise problem
            return
        problems = self.world.gather(str(problem) if problem else None)
        if told := "; ".join(f"rank {k}: {text}" for k, text in enumerate(problems) if text):
            raise OSError(told)

    def _full_weights(self, version: int | None) -> list[tuple[str, Tensor]]:
        serves = self.world.rank == 0 or self.serve is not None
        weights = checkpoint.full_weights(self.learner.model, self.served_dtype, keeps=serves)
        if self.world.has_nodes and version is not None:
            problem = self.serve(version, weights) if self.serve else None
            problems: list[str | None] = [None] * self.world.size
            dist.all_gather_object(problems, problem)
            if any(problems):
                told = "; ".join(f"rank {rank}: {told}" for rank, told in enumerate(problems) if told)
                raise PublishError(f"version {version} is not served on every node: {told}")
        return weights

    def _send_weights(self) -> list[RankReply]:
        stream, self.stream = self.stream, None
        model, reply = self.learner.model, None
        if stream is None:
            deque(whole_buckets(model, self.served_dtype, keeps=False), maxlen=0)
        else:
            try:
                for bucket in whole_buckets(model, self.served_dtype):
                    stream.put(bucket)
                    del bucket  # this bucket is sent while the next is gathered, and freed after that
            finally:
                stream.end()
            reply = self._reply(stream.outcome)
        return self._gathered(reply)

    def _order(self, order: Any) -> list[RankReply]:
        do_order = self.do_order
        return self._gathered(None if do_order is None else self._reply(lambda: do_order(order)))

    def _reply(self, work: Callable[[], Any]) -> RankReply:
        try:
            return RankReply(rank=self.world.rank, answer=work())
        except Exception as error:  # reported to rank 0, which decides
            return RankReply(rank=self.world.rank, problem=f"{type(error).__name__}: {error}")

    def _gathered(self, reply: RankReply | None) -> list[RankReply]:
        """All ranks' replies on rank 0."""
        replies = self.world.gather(reply) if self.world.size > 1 else [reply]
        return [reply for reply in replies if reply is not None]

    def _reduce(self, step: Callable[..., LossStats], *payload: Any) -> LossStats:
        """A step's sums over ranks; gradient norms, mismatch and the gate's verdict are already global."""
        if self.world.size == 1:
            return step(*payload)
        try:
            stats = step(*payload)
        except NonFiniteGradientError as error:  # on every rank
            parts: list[list[BadMicroBatch]] = [[]] * self.world.size
            dist.all_gather_object(parts, error.parts)
            raise NonFiniteGradientError(str(error), [part for ranks in parts for part in ranks]) from None
        sums = torch.tensor([getattr(stats, name) for name in LossStats.SUMS], dtype=torch.float64)
        top = torch.tensor([stats.max_ratio], dtype=torch.float64)
        dist.all_reduce(sums)
        dist.all_reduce(top, dist.ReduceOp.MAX)
        for name, value in zip(LossStats.SUMS, sums.tolist(), strict=True):
            setattr(stats, name, value)
        stats.max_ratio = float(top)
        told: list[Any] = [None] * self.world.size
        dist.all_gather_object(told, (stats.worst, stats.unwritten))
        stats.worst, stats.unwritten = [], []
        for worst, unwritten in told:
            stats.keep_worst(worst)
            stats.unwritten += unwritten
        return stats
