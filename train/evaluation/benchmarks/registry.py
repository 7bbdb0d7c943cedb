"""The built-in evaluation sets by name. The module of a set is imported on first use.

name ──find──> Benchmark ──copy_of──> a local file ──load──> tasks, as many as published, with their digest
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from pathlib import Path

from rocstar.engine.types import HIDDEN, Task
from rocstar.sandbox.command_line import suggest
from rocstar.train.evaluation.benchmarks.benchmark import SETS, Benchmark
from rocstar.train.evaluation.benchmarks.plain_sets import plain_set
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.eval_config import EvalConfig
from rocstar.train.recipe.paths import missing_path_hint
from rocstar.train.tasks.rows import DATA_DIR_VARIABLE

_HERE = "rocstar.train.evaluation.benchmarks"
MODULES: Mapping[str, str] = {
    "ifeval": f"{_HERE}.ifeval.ifeval:IFEVAL",
    "bfcl_v3": f"{_HERE}.bfcl.bfcl:BFCL_V3",
    "arena_hard": f"{_HERE}.arena_hard:ARENA_HARD",
}
"""module:NAME of each set that is more than a row of `sets.toml`."""
NAMES = tuple(SETS)
"""The names of all sets, as in train/recipe/eval_config.py."""


def find(name: str) -> Benchmark:
    """Return the set with that name. ConfigError if there is none, or this installation lacks its package."""
    if name not in SETS:
        raise ConfigError(f"{name!r} is not a built-in set; {suggest(name, NAMES)}")
    if name not in MODULES:
        return plain_set(name)
    module, _, attribute = MODULES[name].partition(":")
    try:
        found: Benchmark = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the set {name!r} needs the package {error.name}, which is missing") from None
    return found


def load_tasks_of(config: EvalConfig) -> list[Task]:
    """Load the tasks of a built-in set, from its local copy or from the hub; those of a hidden one are
    marked.

    Raises:
        ConfigError: no copy is available, or it is another set.
    """
    benchmark = find(config.set)
    path = Path(config.path) if config.path else copy_of(benchmark)
    if not path.exists():
        raise ConfigError(
            f"set {config.set!r}: {str(path)!r} does not exist{missing_path_hint(path)}; pass a copy of "
            f"{benchmark.source.repository or benchmark.source.file}"
        )
    tasks = list(benchmark.load(path))
    if len(tasks) != benchmark.num_questions:
        raise ConfigError(
            f"set {config.set!r}: {str(path)!r} has {len(tasks)} questions, and the set has "
            f"{benchmark.num_questions}; pass a complete copy (eval.limit = N uses its first N)"
        )
    if benchmark.hidden:
        tasks = [dataclasses.replace(task, meta={**task.meta, HIDDEN: True}) for task in tasks]
    return tasks


def copy_of(benchmark: Benchmark) -> Path:
    """Return the set's file at its pinned revision: below $ROCSTAR_DATA_DIR, in the hub's cache, or
    downloaded.

    Raises:
        ConfigError: it is not available.
    """
    source = benchmark.source
    fix = f"pass a local copy: [[eval]] set = {benchmark.name!r}, path = 'FILE', or --path FILE"
    if not source.repository:
        raise ConfigError(f"set {benchmark.name!r} is never downloaded ({source.file}); {fix}")
    override = os.environ.get(DATA_DIR_VARIABLE)
    if override and (local := Path(override) / source.repository / source.file).exists():
        return local
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(
            huggingface_hub.hf_hub_download(
                source.repository, source.file, repo_type="dataset", revision=source.revision
            )
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"set {benchmark.name!r}: {source.repository} at {source.revision or 'its newest revision'} "
            f"cannot be downloaded ({first}); {fix}, or put the file into "
            f"${DATA_DIR_VARIABLE}/{source.repository}/{source.file}"
        ) from None
