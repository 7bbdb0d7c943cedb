"""The foot of the report: what ran, from manifest.json."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rocstar.train.record.console_text import duration
from rocstar.train.record.manifest import ManifestError, read_manifest
from rocstar.train.record.report.page import part


def foot(run_dir: Path) -> Markup:
    """Every start of the run; without a manifest, only the sources of the page."""
    try:
        told = [_sentence(start, k) for k, start in enumerate(read_manifest(run_dir), 1)]
    except ManifestError as error:
        told = [str(error)]
    made = "Made from config.toml, metrics.jsonl, trajectories/ and manifest.json of this run."
    return part("foot", [*told, made])


def _sentence(start: Mapping[str, Any], number: int) -> str:
    """The facts needed to reproduce the run."""
    commit = str(start.get("commit") or "")[:12]
    dirty = " with changes" if start.get("dirty") else ""
    versions = [f"rocstar {start.get('rocstar')}" + (f" ({commit}{dirty})" if commit else "")]
    versions += [f"{name} {start.get(name.lower())}" for name in ("Python", "torch", "transformers")]
    gpus = start.get("gpus") or []
    world = start.get("world_size")
    machine = [str(start.get("host")), str(start.get("platform")), f"{start.get('cpus')} CPUs"]
    machine.append(", ".join(map(str, gpus)) if gpus else "no GPU")
    machine.append("1 process" if world == 1 else f"{world} processes")
    command = " ".join(map(str, start.get("command") or []))
    when = f"Start {number}, {start.get('started')}: {_end(start)}."
    recipe = f"Recipe {str(start.get('recipe'))[:12]}."
    return f"{when} {', '.join(versions)}. {', '.join(machine)}. {recipe} {command}"


def _end(start: Mapping[str, Any]) -> str:
    status = str(start.get("status"))
    try:
        begun, ended = (datetime.fromisoformat(str(start.get(key))) for key in ("started", "ended"))
    except ValueError:
        return status
    return f"{status} after {duration((ended - begun).total_seconds())}"
