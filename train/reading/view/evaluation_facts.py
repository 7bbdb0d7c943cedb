"""Facts of an evaluation from manifest.json and config.toml: its model, settings and data."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocstar.train.evaluation.tables import Results
from rocstar.train.record.manifest import ManifestError, command_of_start, read_manifest
from rocstar.train.record.run_directory import CONFIG

SHORT: Final = 12
"""Characters of a digest in the page."""
MAX_MANIFEST: Final = 60_000
"""The maximum characters of the manifest in the page."""


def manifest_facts(directory: Path, results: Results) -> dict[str, Any]:
    """Return what manifest.json and config.toml say about an evaluation.

    `problem` is the reason why the manifest is unreadable, or "".
    """
    problem = ""
    try:
        starts = read_manifest(directory)
    except ManifestError as error:
        starts, problem = [], str(error)
    recorded = [start for start in starts if isinstance(start.get("evaluation"), Mapping)]
    start: Mapping[str, Any] = (recorded or starts or [{}])[-1]
    manifest = json.dumps(start, indent=1, ensure_ascii=False) if start else ""
    facts = _facts(start, results)
    if facts["made"] and len(starts) > 1:
        facts["made"] += f", {len(starts)} starts"
    return {
        "model": _model(directory, start),
        "facts": {name: value for name, value in facts.items() if value},
        "problem": problem,
        "settings": {name: _settings(start, name) for name in results.sets},
        "command": command_of_start(start),
        "manifest": manifest[:MAX_MANIFEST],
    }


def _at(start: Mapping[str, Any], *path: str) -> Any:
    """Return a value of the start's entry, or None."""
    found: Any = start
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _model(directory: Path, start: Mapping[str, Any]) -> str:
    """Return the name of the model in its recipe; for an evaluation of a run, run and step."""
    run_step = _at(start, "evaluation", "model", "step")
    if run_step is not None and not (directory / CONFIG).is_file():
        return f"{directory.resolve().parent.parent.name}, step {run_step}"
    try:
        recipe = tomllib.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return directory.resolve().name
    model = recipe.get("model")
    return str(model.get("path", "")) if isinstance(model, dict) else directory.resolve().name


def _facts(start: Mapping[str, Any], results: Results) -> dict[str, str]:
    """Return the facts by name, "" if unknown."""
    digests = _at(start, "evaluation", "model") or {}
    names = ("weights", "tokenizer", "template")
    model = [f"{name} {_short(digests[name])}" for name in names if digests.get(name)]
    version = digests.get("version")
    model += [f"policy version {version}"] if version is not None else []
    settings = _at(start, "evaluation", "settings")
    engine, engine_words = _at(start, "evaluation", "settings", "engine"), []
    if isinstance(engine, Mapping):
        engine_words = [str(engine.get("kind")), str(settings.get("dtype") or "")]
        engine_words += ["deterministic"] if engine.get("deterministic") else []
    noise = _at(start, "evaluation", "settings", "noise_seed")
    seed = "" if results.seed is None else f"{results.seed}" + (f" (noise {noise})" if noise else "")
    sandbox, layers = _at(start, "evaluation", "sandbox"), ""
    if isinstance(sandbox, Mapping):
        layers = f"{sandbox.get('tier')}: {', '.join(map(str, sandbox.get('layers') or []))}"
    code = [f"rocstar {start['rocstar']}"] if start.get("rocstar") else []
    if commit := start.get("commit"):
        code.append(f"commit {_short(commit)}{' with changes' if start.get('dirty') else ''}")
    code += [f"{name} {start[name]}" for name in ("python", "torch", "transformers") if start.get(name)]
    dates = [str(start[name]) for name in ("started", "ended") if start.get(name)]
    return {
        "model": ", ".join(model),
        "engine": ", ".join(filter(None, engine_words)),
        "seed": seed,
        "sandbox": layers,
        "code": ", ".join(code),
        "made": " to ".join(dates) if start.get("started") else "",
    }


def _settings(start: Mapping[str, Any], name: str) -> str:
    """Return a sentence about the settings and the data of a set, or "" if unknown."""
    asked = _at(start, "evaluation", "settings", "sampling", name)
    words = []
    if isinstance(asked, Mapping):
        words.append(
            f"Prompted as {asked.get('asking')}: {asked.get('samples')} samples at temperature "
            f"{asked.get('temperature')}, at most {_count(asked.get('max_response_tokens'))} tokens and "
            f"{_count(asked.get('max_turns'))} turns."
        )
    data = _at(start, "evaluation", "data", name)
    if isinstance(data, Mapping):
        source = f"{data.get('repository')} at {_short(data['revision'])}" if data.get("revision") else ""
        rows = {"True": "the published rows", "False": "other rows than the published ones"}
        known = rows.get(str(data.get("is_known")), "")
        parts = [source, known, f"digest {_short(data.get('digest'))}"]
        licence = f" Licence: {data['licence']}." if data.get("licence") else ""
        words.append(f"Data: {', '.join(filter(None, parts))}.{licence}")
    if verifier := _at(start, "evaluation", "verifier", name):
        words.append(f"Verifier {_short(verifier)}.")
    return " ".join(words)


def _short(digest: Any) -> str:
    return str(digest)[:SHORT]


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
