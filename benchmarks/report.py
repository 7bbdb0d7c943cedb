"""The form of every result: claims with figures and bars, and where, when and how they were measured."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def git(*words: str) -> str | None:
    """The output of a git command in the checkout; None if it fails or there is no git."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel, Python, user and load of this process."""
    cpu = Path("/proc/cpuinfo")
    facts = cpu.read_text().splitlines() if cpu.exists() else []
    return {
        "cpu": next((line.split(":")[1].strip() for line in facts if "model name" in line), platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load_1min_at_end": round(os.getloadavg()[0], 2),
    }


def command(arguments: Sequence[str]) -> str:
    """The command line; a path outside the repository is shown by its last part."""
    program = Path(arguments[0])
    named = f"-m benchmarks.{program.parent.name}" if program.name == "__main__.py" else None
    shown = [named] if named else []
    for argument in arguments[bool(named) :]:
        option, equals, value = argument.rpartition("=")
        path = Path(value)
        outside = path.is_absolute() or ".." in path.parts
        shown.append(option + equals + (path.name if outside else value))
    return " ".join(["python", *shown])


def head(benchmark: str, *, seeds: Sequence[int] | int | None = None, commit: str = "") -> dict[str, Any]:
    """The first keys of a result.

    Args:
        seeds: the seeds, or their number; None if nothing is random.
        commit: of a tree without git history, or that made the runs, with `-dirty` at its end if files differ.
    """
    given = commit or git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or ""
    return {
        "benchmark": benchmark,
        "commit": given.removesuffix("-dirty"),
        "is_dirty": given.endswith("-dirty"),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seeds": seeds if seeds is None or isinstance(seeds, int) else list(seeds),
        "command": command(sys.argv),
    }


def claim(
    sentence: str,
    value: float,
    unit: str | None = None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    """One figure; with a limit also its bar, such as `<= 0.6`, and whether the figure meets it."""
    bar = met = None
    if at_least is not None:
        bar, met = f">= {at_least:g}", value >= at_least
    if at_most is not None:
        bar, met = f"<= {at_most:g}", value <= at_most
    return {"claim": sentence, "value": value, "unit": unit, "bar": bar, "met": met}


def result_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser of a script that writes a result: with `--out`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file of the result")
    return parser


def finish(
    benchmark: str,
    data: Mapping[str, Any],
    claims: Sequence[Mapping[str, Any]],
    out: Path | None,
    *,
    seeds: Sequence[int] | int | None = None,
    commit: str = "",
) -> int:
    """Print the claims and write the result to `out`. Return 1 if a bar is missed, else 0. commit: see `head`."""
    for one in claims:
        met = {True: "met   ", False: "MISSED", None: "      "}[one["met"]]
        bar = f" (bar {one['bar']})" if one["bar"] else ""
        print(f"{met}  {one['claim']}: {one['value']:.6g} {one['unit'] or ''}{bar}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text_of({**head(benchmark, seeds=seeds, commit=commit), "claims": list(claims), **data}))
        print(f"wrote {out}")
    return int(any(one["met"] is False for one in claims))


def text_of(result: Mapping[str, Any]) -> str:
    """JSON with a line for each key and for each item of a list of objects, for readable diffs."""
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(json.dumps(item) for item in value)
            lines.append(f" {json.dumps(key)}: [\n  {items}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
