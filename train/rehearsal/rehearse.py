"""A recipe's learner, rehearsed: `rocstar train RECIPE --dry-run --gpu-memory-gb M`.

recipe ─> rows of its lengths ─> real packing ─┐
configuration ─> model without weights ─> real FSDP2 learner on a GPU that is not there ─> acts ─> Rehearsal
"""

import dataclasses
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from rocstar.engine.progress.progress import format_bytes
from rocstar.train.learner.adapters import add_adapters
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.model_io import DTYPES, ModelSize, measure, model_without_weights, row_cost
from rocstar.train.learner.world import World
from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.rehearsal.fake_gpu import MisplacedTensorError, fake_gpu
from rocstar.train.rehearsal.memory_fit import (
    OVERHEAD_GIB,
    KvCapacity,
    MemoryFit,
    MemorySettings,
    check_fit,
    server_kv_capacity,
)
from rocstar.train.rehearsal.memory_tracker import GIB, Category, EngineMemory, MemoryPeak, highest
from rocstar.train.rehearsal.phases import RehearsalLearner, RehearsalPhases, decode, scopes
from rocstar.train.rehearsal.timeline import (
    HARDWARE,
    PackedStep,
    RowLengths,
    Timeline,
    Transfers,
    batch_of,
    cost_model,
    fake_examples,
    generate_s,
    rl_rows,
    sft_rows,
    timeline,
    transfers,
)
from rocstar.train.serving.embedded import has_own_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result. `verdict` is None if the learner did not complete its acts: see `problems`."""

    verdict: MemoryFit | None = None
    peaks: list[MemoryPeak] = field(default_factory=list)
    host_gib: float = 0.0
    """The most that rank 0 holds on the host for files."""
    packing: dict[str, PackedStep] = field(default_factory=dict)
    """The packed step of each part of the recipe that learns."""
    reads: dict[str, int] = field(default_factory=dict)
    """Lines that wait for a value from the GPU, with their counts."""
    room: KvCapacity | None = None
    moved: Transfers | None = None
    timeline: Timeline | None = None
    misplaced: list[str] = field(default_factory=list)
    """Problems that would occur on a device."""
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Problems that refuse the plan."""
        found = [f"on a GPU this would fail: {one}" for one in self.misplaced]
        if self.verdict is not None and not self.verdict.fits:
            v = self.verdict
            act = highest(self.peaks).act
            found.append(
                f"{act} needs {v.peak_gib:.1f} GiB and {OVERHEAD_GIB:.0f} besides its tensors, "
                f"the GPU has {v.memory_gib:g}; {v.fix}"
            )
        if self.room is not None and self.room.kv <= 0:
            found.append(
                f"a server has no room for KV beside weights of {self.room.weights / GIB:.1f} GiB on each "
                "GPU; give it more GPUs (engine.replicas), or raise engine.args.mem-fraction-static"
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """`peak_gib` and `fits` first: null and false where nothing came out."""
        verdict = self.verdict
        return {
            "peak_gib": verdict.peak_gib if verdict else None,
            "fits": verdict is not None and not self.problems,
            "rehearsal": {
                "verdict": _plain(verdict),
                "acts": {
                    peak.act: {"peak_gib": round(peak.total / GIB, 3), "by_category": peak.gib()}
                    for peak in self.peaks
                },
                "host_gib": self.host_gib,
                "packing": {name: _packing(one) for name, one in self.packing.items()},
                "reads": self.reads,
                "server": _plain(self.room),
                "transfers": _plain(self.moved),
                "timeline": _plain(self.timeline),
                "hardware": dataclasses.asdict(HARDWARE),
                "misplaced": self.misplaced,
                "seconds": round(self.seconds, 1),
            },
        }

    def lines(self) -> list[str]:
        """The same for a person."""
        if self.verdict is None:
            return ["rehearsal: it did not come to its end"]
        v = self.verdict
        word = f"fits, {v.spare:.0%} to spare" if v.fits else "does NOT fit"
        lines = [
            f"rehearsed on a GPU of {v.memory_gib:g} GiB that is not there, in {self.seconds:.0f} s: {word}",
            f"  highest peak {v.peak_gib:.1f} GiB, in {highest(self.peaks).act}; {OVERHEAD_GIB:.0f} GiB more "
            "are taken for the driver and the collectives",
        ]
        for peak in self.peaks:
            parts = ", ".join(f"{name} {gib:.1f}" for name, gib in peak.gib().items() if gib >= 0.05)
            lines.append(f"  {peak.act:<11}{peak.total / GIB:>7.1f} GiB: {parts or 'next to nothing'}")
        for name, one in self.packing.items():
            lines.append(
                f"  {name} step: {one.rows:,} rows, {one.tokens:,} tokens, {one.rounds} microbatches a rank; "
                f"the heaviest has {one.heaviest:,} tokens, the longest row {one.longest:,}; efficiency "
                f"{one.efficiency:.2f}"
            )
        if (room := self.room) is not None:
            learner = room.held_by_learner / GIB
            beside = f", {learner:.1f} of the learner's state beside it" if learner else ""
            lines.append(
                f"  a server of {room.gpus} GPUs: {room.kv / GIB:.1f} GiB of KV on each{beside} = "
                f"{room.kv_tokens:,} tokens: {room.mean} trajectories of the mean "
                f"length, {room.longest} of the longest"
            )
        if (moved := self.moved) is not None:
            lines.append(
                f"  publish: {format_bytes(moved.publish_bytes)} to a server, {moved.publish_s:.0f} s; "
                f"checkpoint: {format_bytes(moved.checkpoint_bytes)}, {moved.checkpoint_s:.0f} s, and "
                f"{moved.checkpoint_write_s:.0f} s beside the next steps"
            )
        if (t := self.timeline) is not None:
            generate = "not known" if t.generate_s is None else f"at least {t.generate_s:.0f} s"
            lines.append(
                f"  a step: generate {generate}, learn {t.learn_s:.0f} s, publish {t.publish_s:.0f} s, "
                f"checkpoint {t.checkpoint_s:.1f} s; at stated bandwidths (docs/guide/rehearse.md)"
            )
        if self.host_gib >= 0.05:
            lines.append(f"  rank 0's host holds {self.host_gib:.1f} GiB for files")
        return lines


def _packing(step: PackedStep) -> dict[str, Any]:
    names = ("rows", "tokens", "longest", "heaviest", "rounds")
    return {name: getattr(step, name) for name in names} | {"efficiency": round(step.efficiency, 4)}


def _plain(value: Any) -> Any:
    return None if value is None else dataclasses.asdict(value)


ACTS = ("sft", "rl", "publish", "checkpoint", "decode")
TOOL_S = 0.3
"""Seconds of a tool call in the timeline: the mean of the report."""


def rehearse_recipe(
    recipe: Recipe, machines: Machines, memory_gib: float, *, acts: Collection[str] = ACTS
) -> Rehearsal:
    """Rehearse one SFT and one RL step, a publish and a checkpoint as rank 0 of `machines`.

    `acts`: only these, a part of ACTS.

    Raises:
        ConfigError: the model's configuration is not known here, or the recipe learns nothing.
    """
    began = time.perf_counter()
    size = measure(recipe.model, recipe.lora)
    if isinstance(size, str):
        raise ConfigError(f"nothing can be rehearsed: {size}")
    model = model_without_weights(recipe.model)
    if recipe.lora.rank:  # the adapters are in float32, the rest in the recipe's type
        any_model: Any = model  # transformers has no types for it
        any_model.to(DTYPES[recipe.model.dtype])
        add_adapters(model, recipe.lora, seed=recipe.run.seed)
    cost = row_cost(model)
    rows, batches = batches_of(recipe, machines.ranks, cost, model.config.vocab_size)
    try:
        played, engine, misplaced = _play(recipe, machines, model, batches, acts, memory_gib)
    except MisplacedTensorError as error:
        return Rehearsal(packing=batches, misplaced=[str(error)], seconds=time.perf_counter() - began)
    moved = transfers(size, recipe.engine, machines)
    lengths = [row.tokens for row in rows]
    room = server_kv_capacity(recipe, size, memory_gib=memory_gib, state=played.state, lengths=lengths)
    settings = MemorySettings(
        tokens_per_microbatch=recipe.rl.tokens_per_microbatch,
        rehearsed_tokens=max(batch.heaviest for batch in batches.values()),
        checkpointing=played.runs_again,
        dtype=recipe.model.dtype,
        ranks=machines.ranks,
        engine=engine,
    )
    return Rehearsal(
        verdict=check_fit(highest(played.gpu), memory_gib, settings),
        peaks=played.gpu,
        host_gib=max(peak.total for peak in played.host) / GIB,
        packing=batches,
        reads=played.reads,
        room=room,
        moved=moved,
        timeline=_timeline(recipe, machines, size, cost, batches, room, played.runs_again, moved),
        misplaced=misplaced,
        seconds=time.perf_counter() - began,
    )


def batches_of(
    recipe: Recipe, ranks: int, cost: Cost, vocabulary: int
) -> tuple[list[RowLengths], dict[str, PackedStep]]:
    """The step of each part of the recipe that learns, and the rows of the RL step."""
    batches: dict[str, PackedStep] = {}
    rows: list[RowLengths] = []
    room = recipe.rl.tokens_per_microbatch
    if recipe.sft.steps:
        made = fake_examples(sft_rows(recipe), vocabulary=vocabulary, share_prompts=False)
        batches["sft"] = batch_of(made, room=room, ranks=ranks, cost=cost, updates=1, seed=recipe.run.seed)
    if recipe.stages:
        draws = recipe.rl.uses_rewards and recipe.rl.roc_mode != "none"
        siblings = recipe.rl.group_size if draws else recipe.rl.most_siblings
        rows = rl_rows(recipe, siblings=siblings, limit=_limit(recipe))
        made = fake_examples(rows, vocabulary=vocabulary, share_prompts=True)
        updates = recipe.rl.num_updates_per_batch
        batches["rl"] = batch_of(made, room=room, ranks=ranks, cost=cost, updates=updates, seed=recipe.run.seed)
    if not batches:
        raise ConfigError("the recipe has neither SFT steps nor [[stages]]: nothing learns, and nothing is rehearsed")
    return rows, batches


def _limit(recipe: Recipe) -> int:
    """Return the stage with the longest responses."""
    return max(stage.max_response_tokens for stage in recipe.stages)


def _play(
    recipe: Recipe,
    machines: Machines,
    model: PreTrainedModel,
    batches: dict[str, PackedStep],
    acts: Collection[str],
    memory_gib: float,
) -> tuple[RehearsalPhases, EngineMemory | None, list[str]]:
    """All acts; what embedded engines hold; and what would fail on a device besides the learner."""
    misplaced: list[str] = []
    engine: EngineMemory | None = None
    any_decoder: Any = model_without_weights(recipe.model)  # transformers has no types for it
    decoder = any_decoder.to(DTYPES[recipe.model.dtype])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        with fake_gpu(machines.ranks, memory_bytes=int(memory_gib * GIB)) as gpu, scopes(gpu.tracker):
            world = World(rank=0, size=machines.ranks, local_size=machines.ranks_per_node)
            played = RehearsalLearner(gpu, recipe, model, world)
            if "sft" in batches and "sft" in acts:
                played.sft(batches["sft"].updates[0])
            if "rl" in batches and "rl" in acts:
                played.rl(batches["rl"].updates)
            if "publish" in acts:
                played.publish()
            if "checkpoint" in acts:
                played.save()
            seen = played.over()
            if recipe.engine.kind == "embedded" and "decode" in acts:
                try:
                    own_weights = has_own_weights(recipe, machines.ranks)
                    engine = decode(gpu, recipe, decoder, own_weights=own_weights)
                except MisplacedTensorError as error:
                    misplaced.append(str(error))
    if engine is not None:
        # Where rollouts go on while the learner learns, engines decode then; else they free their KV.
        held = engine.total if recipe.rl.max_staleness else engine.weights
        seen.gpu = [
            peak  # the cold start ends before the engines are made
            if peak.act in ("sft", "decode")
            else dataclasses.replace(peak, by_category={**peak.by_category, Category.engine: held})
            for peak in seen.gpu
        ]
    return seen, engine, misplaced


def _timeline(
    recipe: Recipe,
    machines: Machines,
    size: ModelSize,
    cost: Cost,
    batches: dict[str, PackedStep],
    room: KvCapacity | None,
    runs_again: bool,
    moved: Transfers,
) -> Timeline | None:
    if "rl" not in batches:
        return None
    rl, generate = recipe.rl, None
    if room is not None and room.kv_tokens:
        model = cost_model(size, cost.per_pair, room.gpus)
        replicas = machines.num_servers(recipe.engine)
        rolled = rl_rows(recipe, siblings=rl.rollouts_per_task, limit=_limit(recipe))
        generate = generate_s(rolled, model, kv_tokens=room.kv_tokens, replicas=replicas, tool_s=TOOL_S)
    return timeline(
        batches["rl"],
        moved,
        generate=generate,
        ranks=machines.ranks,
        updates=rl.num_updates_per_batch,
        checkpointing=runs_again,
        every=recipe.checkpoint.every,
    )
