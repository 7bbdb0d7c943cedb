"""The source of an export: a Hugging Face folder, and the facts of the run that wrote it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.chat.chat import ChatError, load_template
from rocstar.train.learner.claims import CheckedFolder, check_folder, read_json_object
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.manifest import ManifestError, read_manifest
from rocstar.train.record.run_directory import COMPLETE, CONFIG, complete_checkpoints, config_of, step_of

NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """A checkpoint that can be exported."""

    folder: Path
    checked: CheckedFolder
    """The same folder, whose declarations and tensors agree."""
    config: Mapping[str, Any]
    """config.json."""
    tokenizer: Mapping[str, Any]
    """tokenizer.json."""
    step: int | None = None
    """Facts of the run; None for a folder without a run."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """The run's resolved recipe."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """The run's last start."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """The sets of the run's evaluation at that step."""
    scores_before: Mapping[str, Any] = field(default_factory=dict)
    """Those of its first evaluation, before RL; empty if this is the one of `scores`."""
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """Data and settings of the evaluation, from its manifest."""

    @property
    def template(self) -> str | None:
        """The chat template that it was trained with, as Jinja; None for one without.

        Raises:
            ConfigError: the recipe's template is not there any more.
        """
        own = self.folder / "chat_template.jinja"
        given = own.read_text(encoding="utf-8") if own.is_file() else self.tokenizer_config.get("chat_template")
        name = self.recipe.get("model", {}).get("template", "model")
        if name == "model":
            return given if isinstance(given, str) else None
        try:
            return load_template(name, None)
        except ChatError as error:
            raise ConfigError(f"model.template of the run: {error}") from None

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json."""
        return read_json_object(self.folder / "tokenizer_config.json")

    @property
    def name(self) -> str:
        """Return the model's name: only the last part of its path."""
        run = self.recipe.get("run", {}).get("name")
        return f"{run}-step{self.step}" if run and self.step is not None else self.folder.resolve().name


def find_source(path: Path) -> ExportSource:
    """Return the checkpoint at a path, or the last complete one of a run. ConfigError if it is neither."""
    if not path.is_dir():
        raise ConfigError(f"{str(path)!r} is not a folder; pass a checkpoint, a Hugging Face folder or a run")
    if not (path / "config.json").is_file():
        checkpoints = complete_checkpoints(path)
        if not checkpoints:
            raise ConfigError(
                f"{str(path)!r} has neither config.json nor a complete checkpoint; give a checkpoint or a run"
            )
        path = checkpoints[-1]
    if missing := [name for name in NEEDED if not (path / name).is_file()]:
        raise ConfigError(f"{str(path)!r} has no {missing[0]}; a folder with the model and its tokenizer has one")
    whole = path.resolve()
    run = whole.parent.parent
    is_of_run = whole.parent.name == "checkpoints" and (run / CONFIG).is_file()
    if is_of_run and not (path / COMPLETE).is_file():
        raise ConfigError(f"{str(path)!r} is not complete: its run was killed while it wrote it; take another step")
    return ExportSource(
        folder=path,
        checked=check_folder(path),
        config=read_json_object(path / "config.json"),
        tokenizer=read_json_object(path / "tokenizer.json"),
        **(_of_run(run, step_of(whole)) if is_of_run else {}),
    )


def _of_run(run: Path, step: int) -> dict[str, Any]:
    files = [run / "evaluations" / f"step_{at:06d}" / "results.json" for at in (step, 0)]
    try:
        recipe = tomllib.loads(config_of(run, step).read_text(encoding="utf-8"))
        starts, evaluated = read_manifest(run), read_manifest(files[0].parent)
    except (tomllib.TOMLDecodeError, ManifestError) as error:
        raise ConfigError(f"the run {str(run)!r} is damaged: {error}") from None
    if any(not isinstance(recipe.get(name, {}), dict) for name in ("model", "run")):
        raise ConfigError(f"the run {str(run)!r} is damaged: model or run is no table in config.toml; restore it")
    scores, before = (read_json_object(path).get("sets", {}) if path.is_file() else {} for path in files)
    return {
        "step": step,
        "recipe": recipe,
        "manifest": starts[-1] if starts else {},
        "scores": scores,
        "scores_before": before if step else {},
        "evaluation": evaluated[-1].get("evaluation", {}) if evaluated else {},
    }
