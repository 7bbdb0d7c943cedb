"""How long the parts of a step take, from the simulator's cost model and stated bandwidths. Pure.

Generating is the lower bound that no schedule beats (engine/sim/bound.py), on the workload whose lengths the
rows have. Learning is arithmetic: FLOPs over FLOP/s, and the packing's waste.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rocstar.engine.sim.bound import lower_bound
from rocstar.engine.sim.cost import Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.workload import SHAPES, TrajectoryWork, TurnWork, Workload, generate
from rocstar.train.learner.balance import Cost, efficiency
from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack, share_out, split_updates
from rocstar.train.learner.checkpoint import checkpoint_bytes
from rocstar.train.learner.example import Example
from rocstar.train.learner.model_io import ModelSize
from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.serving.embedded import PROMPT_SHARE

LENGTHS = "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLengths:
    """Lengths of one trajectory: its task's prompt, then what policy and tools wrote by turns."""

    task: int
    prompt: int
    turns: tuple[tuple[int, int], ...]
    """Tokens of the policy, and of the tool's answer behind them."""

    @property
    def tokens(self) -> int:
        return self.prompt + sum(new + answer for new, answer in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStep:
    """One step's microbatches, of which one rank rehearses a few."""

    updates: list[list[MicroBatch]]
    """The heaviest microbatch of any rank and the next one, for each optimizer step."""
    rounds: int
    """Microbatches of each rank in the whole step."""
    rows: int
    tokens: int
    """Input tokens of the whole step, on all ranks."""
    longest: int
    """Tokens of the longest row."""
    efficiency: float
    """Total work over the duration of the rounds."""
    flops: float
    """The cost of a forward over the whole step."""

    @property
    def heaviest(self) -> int:
        """Input tokens of the heaviest microbatch."""
        return len(self.updates[0][0].ids_I)


def rl_rows(recipe: Recipe, *, siblings: int, limit: int) -> list[RowLengths]:
    """Return the trajectories of one step, `siblings` of each task."""
    return _rows(generate(LENGTHS, tasks=recipe.rl.tasks_per_step, siblings=siblings, seed=0).trajectories, limit)


def sft_rows(recipe: Recipe) -> list[RowLengths]:
    """Return the conversations of one batch: no two of one prompt, none beyond sft.max_tokens."""
    works = generate(LENGTHS, tasks=recipe.sft.batch_size, siblings=1, seed=0).trajectories
    rows = _rows(works, recipe.sft.max_tokens - 1)
    return [_cut(row, recipe.sft.max_tokens) for row in rows]


def _rows(works: Sequence[TrajectoryWork], limit: int) -> list[RowLengths]:
    scale = limit / SHAPES[LENGTHS].limit_tokens
    tasks: dict[str, int] = {}
    rows = []
    for work in works:
        prompt = max(2, min(work.prompt_tokens, int(PROMPT_SHARE * limit)))  # those of small recipes are short
        turns = [(max(1, int(t.new_tokens * scale)), int(t.tool_tokens * scale)) for t in work.turns]
        rows.append(RowLengths(task=tasks.setdefault(work.group, len(tasks)), prompt=prompt, turns=tuple(turns)))
    return rows


def _cut(row: RowLengths, limit: int) -> RowLengths:
    """Return the row truncated to `limit` tokens; its last turn is the policy's."""
    room, turns = limit - row.prompt, []
    for new, answer in row.turns:
        if room < 1:
            break
        turns.append((min(new, room), max(0, min(answer, room - new - 1))))
        room -= sum(turns[-1])
    return RowLengths(task=row.task, prompt=row.prompt, turns=tuple(turns))


def fake_examples(rows: Sequence[RowLengths], *, vocabulary: int, share_prompts: bool) -> list[Example]:
    """Rows of random ids; siblings have their prompt in common. Columns are views where they can be."""
    rng = np.random.default_rng(0)
    longest = max(row.tokens for row in rows)
    noise = rng.integers(0, vocabulary, 4 * longest + 1, dtype=np.int64)
    weight = np.broadcast_to(np.float64(1.0 / sum(new for row in rows for new, _ in row.turns)), (longest,))
    made = []
    for number, row in enumerate(rows):
        start = int(rng.integers(0, len(noise) - row.tokens))
        ids = noise[start : start + row.tokens]
        if share_prompts:
            at = (7 * row.task) % (len(noise) - row.prompt)
            ids = np.concatenate([noise[at : at + row.prompt], ids[row.prompt :]])
        mask = np.zeros(row.tokens, bool)
        at = row.prompt
        for new, answer in row.turns:
            mask[at : at + new] = True
            at += new + answer
        made.append(Example(ids=ids, mask=mask, weights=weight[: row.tokens], advantage=1.0, name=f"row {number}"))
    return made


def batch_of(rows: Sequence[Example], *, room: int, ranks: int, cost: Cost, updates: int, seed: int) -> PackedStep:
    """Return the step of these rows. The heaviest microbatch of each update, on any rank, comes first."""
    parts = split_updates(len(rows), updates, random.Random(seed))
    packed = [pack([rows[k] for k in part], tokens_per_microbatch=room, ranks=ranks, cost=cost) for part in parts]
    costs = [[_cost(micro, cost) for micro in micros] for micros in packed]
    return PackedStep(
        updates=[_heaviest_first(micros, ranks) for micros in packed],
        rounds=sum(-(-len(micros) // ranks) for micros in packed),
        rows=len(rows),
        tokens=sum(len(micro.ids_I) for micros in packed for micro in micros),
        longest=max(len(row.ids) for row in rows),
        efficiency=min(efficiency(one, ranks) for one in costs),
        flops=sum(sum(one) for one in costs),
    )


def _heaviest_first(micros: Sequence[MicroBatch], ranks: int) -> list[MicroBatch]:
    """The microbatch with most tokens, and another of the same rank if it has one."""
    shares = share_out(micros, ranks)
    sizes = [max((len(micro.ids_I), micro.num_loss_tokens) for micro in share) for share in shares]
    share = shares[max(range(len(shares)), key=lambda rank: (sizes[rank], -rank))]
    by_size = sorted(share, key=lambda micro: (-len(micro.ids_I), -micro.num_loss_tokens))
    return by_size[:2] or [empty_microbatch()]


def _cost(micro: MicroBatch, cost: Cost) -> float:
    parts = zip(micro.lengths_S, micro.shared_S, micro.targets_S, strict=True)
    return sum(cost.of(own, shared, targets) for own, shared, targets in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Bytes and FLOPs per second of one GPU, its node and the shared disk. As the simulator has an MI300X."""

    weights_read: float = 4.2e12
    """From the GPU's memory, by a decoding step."""
    kv_read: float = 3.7e12
    prefill_flops: float = 0.6e15
    attention_flops: float = 1.6e15
    learn_flops: float = 0.4e15
    """The share of peak FLOPs of forward and backward, attention included."""
    node_network: float = 50e9
    """Into or out of a node, all its links together: 400 Gbit/s."""
    gpu_links: float = 50e9
    """From one GPU to the others of its node, for a collective."""
    disk_write: float = 2e9
    """One process that writes one file to the shared disk."""
    disk_read: float = 10e9
    """The shared disk, to all who read."""
    host_copy: float = 20e9
    """From a GPU into the memory of its host."""
    launch_s: float = 1.5e-3
    """Seconds of a decoding step besides reading memory."""
    request_s: float = 20e-6
    server_start_s: float = 45.0
    """A server's process until it loads weights, graphs included."""


HARDWARE = Hardware()


BACKWARD = 2.0
"""Backward over forward, in FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Seconds of one RL step."""

    generate_s: float | None
    """None: the engine is not one whose cost is known."""
    learn_s: float
    publish_s: float
    checkpoint_s: float
    """A step's share of those that are written every so many steps."""


def cost_model(size: ModelSize, attention_flops_per_pair: float, gpus: int) -> CostModel:
    """One replica of the model on so many GPUs."""
    served = size.dtype_bytes * size.parameters
    kv_bytes = size.dtype_bytes * size.kv_values_per_token
    return CostModel(
        forward_s=served / gpus / HARDWARE.weights_read + HARDWARE.launch_s,
        request_s=HARDWARE.request_s,
        context_token_s=kv_bytes / gpus / HARDWARE.kv_read,
        prefill_token_s=2 * size.parameters / gpus / HARDWARE.prefill_flops,
        prefill_pair_s=attention_flops_per_pair / gpus / HARDWARE.attention_flops,
    )


def generate_s(rows: Sequence[RowLengths], cost: CostModel, *, kv_tokens: int, replicas: int, tool_s: float) -> float:
    """The least time of a step's rollouts on so many replicas; `tool_s`: seconds of a call."""
    works = [
        TrajectoryWork(
            traj=str(number),
            group=str(row.task),
            stage="rehearsal",
            prompt_tokens=row.prompt,
            max_tokens=row.tokens,
            turns=tuple(
                TurnWork(new, answer, tool_s if answer else 0.0)
                for new, answer in (*row.turns[:-1], (row.turns[-1][0], 0))
            ),
        )
        for number, row in enumerate(rows)
    ]
    cluster = Cluster(model=ReplicaModel(kv_tokens=max(1, kv_tokens), cost=cost), replicas=replicas)
    return lower_bound(Workload(name="rehearsal", trajectories=tuple(works)), cluster).seconds


def timeline(
    batch: PackedStep,
    moved: Transfers,
    *,
    generate: float | None,
    ranks: int,
    updates: int,
    checkpointing: bool,
    every: int,
) -> Timeline:
    """One step. With several updates the later ones' tokens are measured by a forward of their own."""
    forwards = 1 + BACKWARD + (1 if checkpointing else 0) + (updates - 1) / updates
    learn = forwards * batch.flops / (HARDWARE.learn_flops * ranks * max(batch.efficiency, 1e-9))
    return Timeline(
        generate_s=generate,
        learn_s=learn,
        publish_s=moved.publish_s,
        checkpoint_s=moved.checkpoint_s / every if every else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Bytes of one publish to one server, and of one checkpoint; seconds of each part."""

    publish_bytes: int
    checkpoint_bytes: int
    gather_s: float
    """Gather all ranks' shards into one complete copy of the served weights."""
    publish_s: float
    """Until every server has the weights, the gathering included: beside a broadcast, before a file."""
    checkpoint_s: float
    """While the learner waits: the copy to the host."""
    checkpoint_write_s: float
    """In the background."""


def transfers(size: ModelSize, engine: EngineConfig, machines: Machines) -> Transfers:
    """The transfers of publishing and saving weights, by `engine.publish` and `engine.placement`."""
    whole = (size.dtype_bytes if size.adapters else 4) * size.parameters
    served = size.dtype_bytes * size.parameters
    links = HARDWARE.gpu_links if machines.nodes == 1 else HARDWARE.node_network
    parted = machines.ranks > 1 and not size.adapters
    gather_s = served / links if parted else 0.0
    delivered_s, readers = 0.0, machines.num_servers(engine)
    if engine.kind == "embedded":
        delivered_s, readers = served / HARDWARE.weights_read, 0
    elif engine.publish == "broadcast":  # one bucket is sent while the next is gathered
        delivered_s = max(0.0, served / HARDWARE.node_network - gather_s)
        readers -= machines.nodes * engine.num_replicas  # the rest are nodes that only serve
    if readers:
        delivered_s += served / HARDWARE.disk_write + readers * served / HARDWARE.disk_read
    if engine.kind != "embedded" and engine.placement == "restart":
        delivered_s += HARDWARE.server_start_s
    saved = checkpoint_bytes(size.parameters, size.adapters, size.dtype_bytes)
    moments = 8 * (size.adapters or size.parameters)
    return Transfers(
        publish_bytes=served,
        checkpoint_bytes=saved,
        gather_s=gather_s,
        publish_s=gather_s + delivered_s,
        checkpoint_s=(whole / links if parted else 0.0) + (whole + moments / machines.ranks) / HARDWARE.host_copy,
        checkpoint_write_s=max(whole, moments / machines.ranks) / HARDWARE.disk_write,
    )
