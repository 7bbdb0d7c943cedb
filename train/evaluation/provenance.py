"""Digests and settings of an evaluation, for manifest.json and for its verification.

Each digest is a SHA-256 that `rocstar eval --verify` can compute again. None depends on a path, a time or the
name of a machine.
"""

import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rocstar.engine.tools.box import Dispatcher, ToolBox
from rocstar.sandbox.types import ExecRequest, SandboxError
from rocstar.train.evaluation.benchmarks.benchmark import tasks_digest
from rocstar.train.evaluation.sets import EVAL_SEED, EvaluationSet
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import Recipe
from rocstar.train.record.manifest import read_manifest
from rocstar.train.tasks import verify

WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZER = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt"),
)
GRADERS = ("math-verify", "latex2sympy2_extended", "sympy", "reasoning-gym")
"""Packages that the built-in judge calls."""


def identity(recipe: Recipe, sets: Sequence[EvaluationSet], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of an evaluation: `model` as given, with digests of data and verifier."""
    paths = {config.label: config.path for config in recipe.eval}
    return {
        "model": model,
        "data": {chosen.name: data_facts(chosen, paths[chosen.name]) for chosen in sets},
        "verifier": verifier_digests(recipe, sets),
        "judge": judge_facts(sets),
    }


def model_digests(folder: Path | None, template: str) -> dict[str, Any]:
    """Return digests of weights, tokenizer and chat template; None for files that are not on this machine."""
    return {
        "weights": _files_digest(folder, WEIGHTS),
        "tokenizer": _files_digest(folder, TOKENIZER),
        "template": template_digest(template),
    }


def template_digest(template: str) -> str:
    """Return the digest of a chat template's source."""
    return hashlib.sha256(template.encode()).hexdigest()


def model_folder(path: str) -> Path | None:
    """Return the folder of a model's files, which may be in the hub's cache; None if it is not on this
    machine."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None


def data_facts(chosen: EvaluationSet, path: str) -> dict[str, Any]:
    """Return the digest of the tasks and, for a built-in set, its source."""
    facts: dict[str, Any] = {"digest": tasks_digest(chosen.tasks), "num_tasks": len(chosen.tasks)}
    benchmark = chosen.benchmark
    if benchmark is None:
        return facts
    source = benchmark.source
    whole = len(chosen.tasks) == benchmark.num_questions
    return facts | {
        "set": benchmark.name,
        "licence": benchmark.licence,
        "repository": source.repository,
        "revision": None if path else source.revision,
        "copy": path or None,
        "is_known": source.is_known(facts["digest"]) if whole else None,
    }


def verifier_digests(recipe: Recipe, sets: Sequence[EvaluationSet]) -> dict[str, str]:
    """Return the digest of the code that scores each set, and of the packages that it calls.

    The code is a built-in judge's whole package, or the file of a custom function.
    """
    digests = {}
    for chosen in sets:
        if chosen.benchmark is not None and chosen.benchmark.judge is not None:
            files = _source_files(chosen.benchmark.judge)
        else:
            files = _files_beside(verify.__file__)
            if recipe.reward.kind != "math":
                files |= _source_files(own_code.load(recipe.reward.kind, field="reward.kind"), alone=True)
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        for name in GRADERS:
            digest.update(f"{name}=={packages().get(name.lower().replace('_', '-'))}\0".encode())
        digests[chosen.name] = digest.hexdigest()
    return digests


def judge_facts(sets: Sequence[EvaluationSet]) -> dict[str, Any]:
    """Return the model and prompt of the judges, for sets that a model judges."""
    described = [(one.name, one.benchmark.describe) for one in sets if one.benchmark is not None]
    return {name: dict(describe()) for name, describe in described if describe is not None}


def _source_files(made: Any, *, alone: bool = False) -> set[Path]:
    """Return the file of a function or class; with those of its folder, unless `alone`."""
    while hasattr(made, "func"):  # of a partial
        made = made.func
    file = inspect.getsourcefile(made)
    if file is None:
        return set()
    return {Path(file)} if alone else _files_beside(file)


def _files_beside(module: str) -> set[Path]:
    """Return the modules of a folder and their tables."""
    return {path for path in Path(module).parent.iterdir() if path.suffix in (".py", ".toml")}


async def sandbox_facts(tools: ToolBox) -> dict[str, Any] | None:
    """Return the isolation layers that a program reports, or None if the tools run no programs."""
    sandbox = tools.sandbox if isinstance(tools, Dispatcher) else None
    if sandbox is None:
        return None
    try:
        result = await sandbox.run(ExecRequest(code="pass"))
    except SandboxError as error:
        return {"error": error.kind}
    return {"tier": result.tier, "layers": sorted(result.isolation.split("+")) if result.isolation else []}


def settings_facts(recipe: Recipe, sets: Sequence[EvaluationSet], *, step: int) -> dict[str, Any]:
    """Return engine, seeds, sampling and packages."""
    return {
        "engine": recipe.engine.model_dump(mode="json"),
        "dtype": recipe.model.dtype,
        "task_prompt": recipe.model.task_prompt,
        "threads": recipe.run.threads,
        "seed": recipe.run.seed,
        "noise_seed": recipe.run.seed + EVAL_SEED,
        "step": step,
        "sampling": {chosen.name: chosen.settings() for chosen in sets},
        "packages": dict(packages()),
    }


@cache
def packages() -> Mapping[str, str]:
    """Return the versions of all installed distributions by lower-case name."""
    found = {
        str(each.metadata["Name"]).lower().replace("_", "-"): each.version
        for each in distributions()
        if each.metadata["Name"]
    }
    return dict(sorted(found.items()))


def last_facts(out: Path) -> dict[str, Any] | None:
    """Return the facts of the latest start that recorded some, or None."""
    recorded = [start["evaluation"] for start in read_manifest(out) if "evaluation" in start]
    return recorded[-1] if recorded else None


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return digests of an evaluation's files by their path in it."""
    return {name: _file_digest(folder / name) for name in names}


def _files_digest(folder: Path | None, patterns: Sequence[str]) -> str | None:
    files = sorted({path for pattern in patterns for path in folder.glob(pattern)}) if folder else []
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{_file_digest(path)}\0".encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differences(was: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a line for each difference of two tables. Keys that `now` lacks are not compared."""
    found = []
    for key, value in now.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and isinstance(was.get(key), Mapping):
            found += differences(was[key], value, f"{name}.")
        elif was.get(key) != value:
            found.append(f"{name}: was {was.get(key)!r}, is {value!r}")
    return found
