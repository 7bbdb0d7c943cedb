"""The TOML file of `rocstar data build`: sources, filters, mixture. Checked whole before anything is read.

    kind = "tasks"

    [[sources]]
    name = "dapo"
    source = "dapo.jsonl"      # beside this file, or hub:OWNER/NAME:CONFIGURATION
    licence = "Apache-2.0"

    [overlap]
    against = ["aime24.jsonl"]

Imports no torch.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.chat.chat import load_template
from rocstar.sandbox.command_line import format_error, suggest
from rocstar.train.data.problem_kinds import KINDS
from rocstar.train.data.problem_kinds import Kind as ProblemKind
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.explain import explain
from rocstar.train.recipe.load import RECIPES, read_toml
from rocstar.train.recipe.section import Section

Scalar = str | int | float | bool
BUILDS: Final = RECIPES / "data"
"""The folder of the shipped build files."""
MAX_DIGITS: Final = 30
"""Digits of a number that is not huge. The longest label of DAPO-Math-17k has 23; the report's example of a
huge one, 6.5e27330467, has 27 million."""
COMMERCIAL: Final = frozenset({
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "odc-by", "odc-by-1.0", "odbl", "pddl", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "unlicense", "public-domain",
})  # fmt: skip
"""The licences that allow commercial use, by their names on the hub. No legal advice."""
COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class SourceConfig(Section):
    """Rows of one origin under one name."""

    name: str = Field(pattern=r"^[\w.-]+$", description="as provenance and the funnel call it")
    source: str = Field(description="a JSONL or Parquet file, a folder of them, or hub:OWNER/NAME:CONFIGURATION")
    revision: str = Field("", description="the commit that the rows come from; a hub source must name one")
    licence: str = Field(description="of the rows, as the hub writes it: apache-2.0, cc-by-nc-4.0, ...")
    licence_field: str = Field("", description="field with the licence of each row; `licence` where it is empty")
    split: str = Field("train", description="of folders and hub data sets")
    question: str = Field("question", description="of tasks: field with the question, dots step into objects")
    answer: str = Field("answer", description="of tasks: field with the answer")
    format: Literal["messages", "sharegpt", "instruction"] = Field(
        "messages", description="of conversations: how a row says them"
    )
    only: dict[str, Scalar | list[Scalar]] = Field(
        {}, description="field -> the value that a row must have there, or a list of such values"
    )
    without: list[str] = Field([], description="fields that a row must not have, or have empty: marks of bad rows")
    most: int = Field(0, ge=0, description="rows drawn of those that pass everything else; 0 = all")


class CleanConfig(Section):
    """Which tasks can be judged."""

    answers: Literal["integer", "any"] = Field("integer", description="integer: only whole numbers, rewritten plainly")
    max_digits: int = Field(MAX_DIGITS, ge=1, le=4000, description="digits; an integer with more is huge")
    drop: list[ProblemKind] = Field(list(KINDS), description="kinds of questions that are left out")


class EvalSet(Section):
    """Questions of an evaluation."""

    source: str = Field(description="a file, a folder, or hub:OWNER/NAME:CONFIGURATION")
    split: str = Field("train", description="of folders and hub data sets")
    revision: str = Field("", description="of a hub data set: its commit; empty = the newest")
    question: str = Field("", description="field with the question; empty = as `rocstar data check` finds it")

    @model_validator(mode="before")
    @classmethod
    def _source_alone(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


class OverlapConfig(Section):
    """Against which questions the rows are held, as `rocstar data check` does."""

    against: list[EvalSet] = Field(min_length=1, description="evaluation sets: tables, or their source alone")
    mode: Literal["coverage", "paper"] = Field("coverage", description="paper: any 8 words in a row")
    drop: list[Literal["duplicate", "near", "twin"]] = Field(
        ["duplicate", "near"], description="levels that are left out"
    )


class DifficultyConfig(Section):
    """The filter by the pass rate of a model, read from its records."""

    rollouts: list[str] = Field(min_length=1, description="files of `rocstar rollout`, or folders of records")
    solved: int = Field(0, ge=0, description="attempts; k: drop tasks with k attempts or more, all of them correct")
    easy_above: float = Field(1.0, gt=0, le=1, description="pass rate; 1 = none is too easy")
    certainty: float = Field(
        0.9, gt=0.5, lt=1, description="drop a task if its rate is above easy_above with this probability"
    )
    min_correct: int = Field(0, ge=0, description="attempts that must be correct: labels that no attempt meets")
    unmeasured: Literal["keep", "drop"] = Field("keep", description="tasks without a scored attempt")


class ConversationsConfig(Section):
    """The requirements on conversations."""

    templates: list[str] = Field(
        ["rstar2"], min_length=1, description="chat templates that must show it: bundled names or files"
    )
    drop_reasoning: bool = Field(True, description="leave out what assistants thought: for a non-reasoning start")
    calls: bool = Field(True, description="every call must name a tool of the row and fit its schema")


class BuildConfig(Section):
    """A whole build."""

    kind: Literal["tasks", "conversations"] = Field(description="the form of the written rows")
    seed: int = Field(0, description="of the draw where a source gives `most` rows")
    sources: list[SourceConfig] = Field(min_length=1, description="of equal rows the first source's stays")
    clean: CleanConfig = CleanConfig()
    overlap: OverlapConfig | None = None
    difficulty: DifficultyConfig | None = None
    conversations: ConversationsConfig = ConversationsConfig()


def load_build(path: Path, *, commercial: bool = False) -> BuildConfig:
    """Read and check a build's file; paths in it become absolute, from its folder on.

    Raises:
        ConfigErrors: everything that is wrong, each with value, reason and fix.
    """
    shipped = {build.stem: build for build in sorted(BUILDS.glob("*.toml"))}
    name = path.name.removesuffix(".toml")
    if len(path.parts) == 1 and not path.is_file():
        path = shipped.get(name, path)
    try:
        raw = read_toml(path, what=repr(str(path)))
    except OSError as error:
        fix = suggest(name, shipped)
        raise ConfigError(f"{format_error(error, path)}; pass the TOML file of a build, or {fix}") from None
    try:
        config = BuildConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigErrors([f"{path}: {explain(one, BuildConfig)}" for one in error.errors()]) from None
    config = _with_paths(config, path.parent)
    if problems := list(_problems(config, raw, commercial)):
        raise ConfigErrors([f"{path}: {problem}" for problem in problems])
    return config


def _with_paths(config: BuildConfig, folder: Path) -> BuildConfig:
    """Return a copy with absolute paths. Hub data sets and names of bundled templates stay."""

    def located(one: SourceConfig | EvalSet) -> SourceConfig | EvalSet:
        is_local = not one.source.startswith("hub:")
        return one.model_copy(update={"source": os.path.abspath(folder / one.source)}) if is_local else one

    overlap, difficulty, conversations = config.overlap, config.difficulty, config.conversations
    templates = [
        os.path.abspath(folder / name) if name.endswith(".jinja") else name for name in conversations.templates
    ]
    changed: dict[str, Any] = {
        "sources": [located(one) for one in config.sources],
        "conversations": conversations.model_copy(update={"templates": templates}),
    }
    if overlap:
        against = [located(one) for one in overlap.against]
        changed["overlap"] = overlap.model_copy(update={"against": against})
    if difficulty:
        rollouts = [os.path.abspath(folder / name) for name in difficulty.rollouts]
        changed["difficulty"] = difficulty.model_copy(update={"rollouts": rollouts})
    return config.model_copy(update=changed)


def _problems(config: BuildConfig, raw: Mapping[str, Any], commercial: bool) -> Iterator[str]:
    """Checks that the types of the fields do not cover."""
    for name, count in Counter(one.name for one in config.sources).items():
        if count > 1:
            yield f"{count} sources are called {name!r}; give each a name of its own"
    for k, source in enumerate(config.sources):
        place = f"sources.{k} ({source.name})"
        if source.source.startswith("hub:"):
            if not source.revision:
                yield f"{place}: revision is missing; name the commit of the data set, or 'main', which moves"
        elif not os.path.exists(source.source):
            yield f"{place}: {source.source!r} does not exist; correct source"
        if not source.licence.strip():
            yield f"{place}: licence is empty; say under which the rows were published"
    refused = [
        f"{one.name}: {why}"
        for one in config.sources
        if not one.licence_field and (why := forbids_commercial_use(one.licence))
    ]
    if commercial and len(refused) == len(config.sources):
        yield f"--commercial leaves no source ({'; '.join(refused)}); add one, or build without it"
    wrong = ("clean", "difficulty") if config.kind == "conversations" else ("conversations",)
    for section in wrong:
        if section in raw:
            yield f"[{section}] is not of kind = {config.kind!r}; remove it, or change kind"
    for where, names in (
        ("overlap.against", [one.source for one in config.overlap.against] if config.overlap else ()),
        ("difficulty.rollouts", config.difficulty.rollouts if config.difficulty else ()),
    ):
        for name in names:
            if not name.startswith("hub:") and not os.path.exists(name):
                yield f"{where}: {name!r} does not exist; correct it"
    if config.kind == "conversations":
        for name in config.conversations.templates:
            try:
                load_template(name, None)
            except ChatError as error:
                yield f"conversations.templates: {error}"


def forbids_commercial_use(licence: str) -> str | None:
    """Return the reason to drop rows of this licence for commercial use; None if they are allowed."""
    name = "-".join(licence.strip().lower().replace("_", "-").split())  # "CC BY-NC 4.0" is cc-by-nc-4.0
    if name in COMMERCIAL:
        return None
    if "nc" in name.split("-"):
        return f"{licence} forbids commercial use"
    return f"{licence or 'no licence'} is not among those known to allow commercial use"
