"""`--resume`: the accepted changes of the recipe, and the remaining work.

recipe, config.toml of the run -> changes -> refused: the finished part would not match the recipe
                                          -> reported: the rest
last checkpoint, metrics.jsonl -> complete, or the rows that stay
"""

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from rocstar.train.learner import checkpoint
from rocstar.train.recipe.config import Recipe, SftConfig, with_eval_limits
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import flat_fields, parse_recipe, to_toml
from rocstar.train.record.metrics import Row, rows_behind
from rocstar.train.record.run_directory import CONFIG, METRICS, check_claim, keep_config

_REASONS = tomllib.loads(Path(__file__).with_name("resume.toml").read_text(encoding="utf-8"))
FIXED: Final[Mapping[str, str]] = {name: reason for reason, names in _REASONS.items() for name in names}
"""Fields that a resumed run must not change, and why. Those of a stage that has begun: see `_stages`.

A test lists the other fields, with the reason that each may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A field of the recipe with another value than the run's."""

    field: str
    was: Any
    now: Any
    refusal: str | None
    """Why it cannot be; None where it can."""

    def __str__(self) -> str:
        return f"{self.field}: was {_shown(self.was)}, now {_shown(self.now)}"


def recipe_changes(former: Recipe, recipe: Recipe, *, step: int, done: int) -> list[Change]:
    """Every difference, for a run that goes on behind `step` and had made `done` steps."""
    was, now = (flat_fields(with_eval_limits(one).model_dump()) for one in (former, recipe))
    names = [*was, *(name for name in now if name not in was)]
    reasons = _stages(former, recipe, step, done)
    return [
        Change(field=name, was=was.get(name), now=now.get(name), refusal=reasons.get(name, _fixed(name)))
        for name in names
        if not _is_same(was.get(name), now.get(name))
    ]


def check_changes(run_dir: Path, recipe: Recipe, saved: Path | None) -> list[Change]:
    """Return the fields that differ from the run's config.toml. Raise ConfigError for a fixed one.

    Without a checkpoint the run starts again, and no field is fixed.
    """
    path = run_dir / CONFIG
    if not path.is_file():
        return []
    try:
        former = parse_recipe(tomllib.loads(path.read_text(encoding="utf-8")), where=str(path))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not the recipe of a run: {error}") from None
    if saved is None:
        found = recipe_changes(former, recipe, step=0, done=0)
        return [dataclasses.replace(change, refusal=None) for change in found]
    progress = checkpoint.load_progress(saved)
    behind = rows_behind(run_dir / METRICS, progress["metrics_bytes"])
    done = max([progress["step"], *(row["step"] for row, _ in behind if row["phase"] == "rl")])
    found = recipe_changes(former, recipe, step=progress["step"], done=done)
    refused = [change for change in found if change.refusal]
    if refused:
        whys = "; ".join(f"{change.field} {change.refusal}" for change in refused)
        raise ConfigError(
            f"--resume cannot go on in {str(run_dir)!r} with this recipe: {whys}; give back what it began "
            f"with, or take another --output-dir\n{show_changes(path, found)}"
        )
    return found


def complete(recipe: Recipe, run_dir: Path, *, live: bool) -> str | None:
    """Return the message for a complete run; None if a resume has work. Nothing is written.

    Raises:
        ConfigError: the folder cannot be resumed, or not with this recipe.
    """
    check_claim(run_dir, resume=True)
    saved = checkpoint.latest(run_dir)
    if saved is None:
        return None
    check_same_kind(checkpoint.load_progress(saved), live=live)
    if not live:
        recipe = recipe.model_copy(update={"sft": SftConfig(steps=0)})
    found = check_changes(run_dir, recipe, saved)
    if not is_complete(recipe, run_dir, saved, live=live):
        return None
    steps = sum(stage.steps for stage in recipe.stages)
    message = f"{str(run_dir)!r} is complete; nothing to do: {steps} RL steps, the last checkpoint is {saved}"
    return message + (f"; not applied: {'; '.join(map(str, found))}" if found else "")


def take_recipe(recipe: Recipe, run_dir: Path, saved: Path | None) -> str | None:
    """Store the recipe as the run's, and keep the former one. Return the message; None without a change.

    Raises:
        ConfigError: it changes a fixed field; nothing was written.
    """
    found = check_changes(run_dir, recipe, saved)
    step = checkpoint.load_progress(saved)["step"] if saved else 0
    kept = keep_config(run_dir, to_toml(recipe), step=step)
    if not found:
        return None
    return f"the recipe is not as before; the former one is {kept}\n{show_changes(run_dir / CONFIG, found)}"


def show_changes(path: Path, found: list[Change]) -> str:
    """The changes as lines: field, was, now."""
    marks = (f"{'! ' if change.refusal else '  '}{change}" for change in found)
    return "\n".join([f"--- {path}", "+++ this recipe", *marks])


def is_complete(recipe: Recipe, run_dir: Path, saved: Path, *, live: bool) -> bool:
    """Whether nothing is left: the last step is in the checkpoint, and its evaluation in metrics.jsonl."""
    progress = checkpoint.load_progress(saved)
    if progress["step"] != sum(stage.steps for stage in recipe.stages):
        return False
    if not live or not recipe.stages or not recipe.eval:
        return True
    behind = rows_behind(run_dir / METRICS, progress["metrics_bytes"])
    return any(_evaluates(row, progress["step"]) for row, _ in behind)


def bytes_to_keep(run_dir: Path, saved: Path | None) -> int:
    """Return the number of valid rows of metrics.jsonl: the checkpoint's, and evaluations of its policy after
    it."""
    if saved is None:
        return 0
    progress = checkpoint.load_progress(saved)
    kept: int = progress["metrics_bytes"]
    for row, end in rows_behind(run_dir / METRICS, kept):
        if not _evaluates(row, progress["step"]):
            break
        kept = end
    return kept


def _evaluates(row: Row, step: int) -> bool:
    return bool(row["phase"] == "eval" and row["stage"] == "eval" and row["step"] == step)


def _stages(former: Recipe, recipe: Recipe, step: int, done: int) -> dict[str, str]:
    """Why a field of a stage must stay: the stage has begun."""
    reasons: dict[str, str] = {}
    first = 0
    for k, stage in enumerate(former.stages):
        begun, over = first < step, first + stage.steps < step
        first += stage.steps
        if not begun:
            break
        for name in flat_fields(former.model_dump()) | flat_fields(recipe.model_dump()):
            if name.startswith(f"stages.{k}.") and name != f"stages.{k}.steps":
                reasons[name] = f"belongs to a stage that has begun ({stage.name!r})"
        if over:
            reasons[f"stages.{k}.steps"] = f"is behind the run: stage {stage.name!r} is over"
        elif (short := sum(stage.steps for stage in recipe.stages[: k + 1])) < done:
            reasons[f"stages.{k}.steps"] = f"would end the stage at step {short}, and {done} are done"
    return reasons


def _fixed(name: str) -> str | None:
    return next((reason for pattern, reason in FIXED.items() if fnmatchcase(name, pattern)), None)


def _is_same(was: Any, now: Any) -> bool:
    """Equal, or two names of one path: that of the recipe's folder may be written out or not."""
    if isinstance(was, str) and isinstance(now, str) and ("/" in was or "/" in now):
        return os.path.abspath(was) == os.path.abspath(now)
    return bool(was == now)


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def check_same_kind(progress: Mapping[str, Any], *, live: bool) -> None:
    """A run is resumed the way it began. ConfigError if it rolled out and now would not, or the reverse."""
    began = progress.get("source", "live")
    if began != checkpoint.source_kind(live=live):
        if began == "live":
            problem = "rolled out so far and cannot go on with --from-rollouts; leave it out"
        else:
            problem = (
                "learned from records (--from-rollouts) so far and cannot go on without it; pass the "
                "--from-rollouts it began with"
            )
        raise ConfigError(f"the run {problem}, or take another --output-dir")
