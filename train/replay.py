"""`rocstar replay`: compute the loss of a step again from the run's records.

    checkpoint M < N -> learn the recorded trajectories of M+1 ... N-1 again -> loss of step N

The loss of step N is that of the weights before it, so the checkpoint is the newest that was written before
step N: step_N itself already has the update. Nothing is rolled out and nothing is written. One process
replays a run of any number of ranks; with `engine.deterministic`, on the machine and with the threads of a
one-process run, the losses are equal to the last bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import RecordError, from_record
from rocstar.engine.record.reading import read_records
from rocstar.train.groups.packing import pack_updates
from rocstar.train.groups.selection import Selection
from rocstar.train.learner import checkpoint
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.loss_stats import LossStats, update_metrics
from rocstar.train.learner.model_io import HEAD_DTYPES, load_tokenizer, row_cost
from rocstar.train.learner.settings import EntropyControl, loss_settings, stage_optimizer
from rocstar.train.learner.sharding import load_learner
from rocstar.train.learner.world import World, deterministic_torch, local_device
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.metrics import read_metrics
from rocstar.train.record.run_directory import CONFIG, METRICS, TRAJECTORIES, config_of
from rocstar.train.tasks.chat_format import chat_format

ALONE = World(rank=0, size=1)
TOLERANCE = 1e-4
"""Losses of one, two and four ranks differ by less; a difference beyond it means another update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """The loss of one step, computed again and as the run logged it; None where no update was made."""

    step: int
    loss: float | None
    logged: float | None

    @property
    def difference(self) -> float:
        if self.loss is None or self.logged is None:
            return 0.0 if self.loss is self.logged else math.inf
        return abs(self.loss - self.logged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result: the requested step is the last of `steps`; those before it were learned again."""

    checkpoint: Path
    steps: list[StepLoss]
    trajectories: int
    """Kept trajectories of the asked step."""

    @property
    def agrees(self) -> bool:
        return all(step.difference <= TOLERANCE for step in self.steps)

    def to_json(self) -> str:
        asked = self.steps[-1]
        content = {
            "step": asked.step,
            "checkpoint": str(self.checkpoint),
            "relearned_steps": [s.step for s in self.steps[:-1]],
            "trajectories": self.trajectories,
            "loss": asked.loss,
            "logged_loss": asked.logged,
            "difference": None if math.isinf(asked.difference) else asked.difference,
            "agrees": self.agrees,
        }
        return json.dumps(content)

    def to_text(self) -> str:
        asked, earlier = self.steps[-1], [s.step for s in self.steps[:-1]]
        again = f"steps {earlier[0]} to {earlier[-1]} learned again" if earlier else "no step in between"
        lines = [f"checkpoint  {self.checkpoint}, {again}"]
        if asked.loss is None and asked.logged is None:
            lines.append(f"step {asked.step}  no update: no loss, here and in {METRICS}")
        else:
            lines.append(f"step {asked.step}  loss {asked.loss}, in {METRICS} {asked.logged}")
        off = [s for s in self.steps if s.difference > TOLERANCE]
        differs = ", ".join(f"step {s.step} by {s.difference:.1e}" for s in off)
        lines.append(f"differs beyond {TOLERANCE:g}: {differs}" if off else f"difference {asked.difference:.1e}")
        return "\n".join(lines)


def replay(run_dir: Path, step: int) -> Replay:
    """Recompute step `step` of a run. ConfigError for a folder or a step that cannot be replayed."""
    for name in (CONFIG, METRICS):
        if not (run_dir / name).is_file():
            raise ConfigError(f"{str(run_dir)!r} is not a run directory: it has no {name}; pass one")
    rows = {row["step"]: row for row in read_metrics(run_dir / METRICS) if row["phase"] == "rl"}
    recipe = load_recipe(config_of(run_dir, step))
    if step not in rows:
        known = f"1 to {max(rows)}" if rows else "none yet"
        raise ConfigError(f"run {str(run_dir)!r} has no RL step {step}; its steps are {known}")
    saved = checkpoint.latest(run_dir, before=step)
    if saved is None:
        raise ConfigError(
            f"run {str(run_dir)!r} has no checkpoint from before step {step}; keep more of them with "
            "checkpoint.every, checkpoint.keep_last and checkpoint.keep_every"
        )
    progress = checkpoint.load_progress(saved)
    first: int = progress["step"] + 1
    selections = {k: _recorded(run_dir, k) for k in range(first, step + 1)}
    logged = {k: rows[k].get("loss/policy") for k in selections}
    checkpoint.set_threads(ALONE.threads(recipe.run.threads))
    with deterministic_torch(recipe.engine.deterministic, local_device()):
        losses = _learn_again(recipe, saved, selections, progress)
    steps = [StepLoss(step=k, loss=losses[k], logged=logged[k]) for k in selections]
    return Replay(checkpoint=saved, steps=steps, trajectories=len(selections[step].kept))


def _learn_again(
    recipe: Recipe, saved: Path, selections: Mapping[int, Selection], progress: Mapping[str, Any]
) -> dict[int, float | None]:
    """The loss of each step in turn, from the weights of the checkpoint `saved`."""
    model = load_learner(str(saved), ALONE, recipe)
    learner = Learner(model, head_dtype=HEAD_DTYPES[recipe.model.head_dtype])
    learner.use(stage_optimizer(recipe))
    checkpoint.load_optimizer(saved, learner)
    ends = accumulate(stage.steps for stage in recipe.stages)
    fresh = [
        end - stage.steps + 1
        for stage, end in zip(recipe.stages, ends, strict=True)
        if stage.reset_optimizer and stage.steps
    ]
    bad_steps, entropy = progress.get("bad_steps", 0), EntropyControl(**progress.get("entropy", {}))
    losses, bodies = {}, chat_format(recipe, load_tokenizer(str(saved))).body_mask if recipe.rl.echo else None
    for k, selection in selections.items():
        if k in fresh:
            learner.use(stage_optimizer(recipe))
        updates = pack_updates(selection, recipe, step=k, cost=row_cost(model), bodies=bodies)
        stats = LossStats(is_paused=True, bad_steps=bad_steps)  # no batch, no update
        if updates:
            stats = learner.policy_step(updates, loss_settings(recipe, alpha=entropy.alpha), bad_steps)
        bad_steps, entropy = stats.bad_steps, entropy.after(stats, recipe.rl)
        losses[k] = update_metrics(stats).get("loss/policy")
    return losses


def _recorded(run_dir: Path, step: int) -> Selection:
    """Return the trajectories of a step in the learner's order."""
    path = record_files(run_dir / TRAJECTORIES).get(step)
    if path is None:
        raise ConfigError(
            f"{str(run_dir / TRAJECTORIES)!r} has no records: step {step} cannot be learned again "
            "without them; a run keeps those of all steps with run.keep_records = 0"
        )
    try:
        records = [record for record in read_records(path) if record["decision"]["kept"]]
        kept = [from_record(record) for record in records]
        advantages = [_finite(record["advantage"]) for record in records]
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: a record is not whole: {type(error).__name__}: {error}") from None
    return Selection(kept=kept, advantages=advantages, verdicts=[], groups_used=0, groups_no_signal=0)


def _finite(advantage: Any) -> float | Sequence[float]:
    """The advantage of a record: a number, or one per loss token."""
    values = advantage if isinstance(advantage, list) else [advantage]
    if not all(isinstance(value, float) and math.isfinite(value) for value in values):
        raise ValueError(f"a kept trajectory has advantage {advantage!r:.100}")
    return advantage if isinstance(advantage, list) else float(advantage)
