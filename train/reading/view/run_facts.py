"""Facts of a run: its line in the list, its state and progress, its recipe, its starts, and its metrics."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from rocstar.engine.charts.drawing import format_value
from rocstar.engine.progress.progress import duration
from rocstar.train.evaluation.evaluation_folder import RESULTS
from rocstar.train.reading.view.chart import PlottedEvaluation, evaluations, finite, main_set_of, rows_of
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import RECIPES, flat_fields, load_recipe, shipped_recipes
from rocstar.train.record.console_text import number
from rocstar.train.record.manifest import ManifestError, command_of_start
from rocstar.train.record.metrics import Row, UnknownMetricError, is_zero_if_absent, metric_of
from rocstar.train.record.run_directory import METRICS

RECENT = 10
"""The rows of which the remaining time is estimated."""
KILLED = "the process ended without a message, for example for lack of memory"
_TIMED = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z (.*)", re.DOTALL)
_STEP = re.compile(r"(step|sft) [\d,]+/[\d,]+ ")
_WORK = re.compile(r"[^:]+: .*[\d,]+ of [\d,]+ .*")


def summary(run: ViewedRun) -> dict[str, Any]:
    """Return the line of a run in the list; nothing of its trajectories is read."""
    rows, config = run.metrics(), run.config()
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    main = main_set_of(found)
    last = next((e for e in reversed(found) if e.set_name == main), None)
    starts, _ = _starts(run)
    evaluated = list(run.evaluations())
    kind = "training" if (run.path / METRICS).is_file() or "train" in _command(starts) else "recording"
    if (run.path / RESULTS).is_file():
        kind = "evaluation"
    return {
        "name": run.name,
        "path": str(run.path),
        "kind": kind,
        "date": _date(run, starts),
        "model": str(config.get("model", {}).get("path", "")),
        "recipe": _recipe_name(config, starts),
        "status": run.status(),
        "steps": len(steps),
        "reward": number(steps[-1], "reward/mean") if steps else None,
        "curve": [number(row, "reward/mean") for row in steps][-400:],
        "evaluation": None
        if last is None
        else {"set": last.set_name, "value": last.value, "low": last.low, "high": last.high},
        "wall_s": max((float(row["time_s"]) for row in rows), default=None),
        "evaluated": evaluated,
        "trajectories": STEPS in run.collections(),
        "problem": run.problem,
    }


def _starts(run: ViewedRun) -> tuple[list[dict[str, Any]], str]:
    """Return the starts of a run, and why they cannot be read."""
    try:
        return run.starts(), ""
    except ManifestError as error:
        return [], str(error)


def _date(run: ViewedRun, starts: Sequence[Mapping[str, Any]]) -> str:
    """Return when the run began, or when its folder changed if no manifest says so, in UTC."""
    if starts and starts[0].get("started"):
        return str(starts[0]["started"])
    return datetime.fromtimestamp(run.path.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _command(starts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(word) for word in (starts[-1].get("command") or [])] if starts else []


def _recipe_name(config: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the recipe that the command names, else that of the run."""
    words = _command(starts)
    if "train" in words[:-1] and not (word := words[words.index("train") + 1]).startswith("-"):
        return Path(word).name.removesuffix(".toml")
    return str(config.get("run", {}).get("name", ""))


def head_facts(run: ViewedRun) -> dict[str, Any]:
    """Return state, progress, recipe and starts of a run, for the head of its page."""
    rows, config, log, status = run.metrics(), run.config(), run.log(), run.status()
    starts, problem = _starts(run)
    name = _recipe_name(config, starts)
    base = name if name in shipped_recipes() else ""
    return {
        "progress": progress_of(config, rows, log) if status == "running" else None,
        "reason": KILLED if status == "killed" else _ending(log) if status in ("interrupted", "failed") else "",
        "base": base,
        "differences": differences(config, base) if config else [],
        "fields": [[name, _toml(value)] for name, value in sorted(flat_fields(config).items())],
        "starts": [_start(start) for start in starts],
        "problem": "; ".join(filter(None, (run.problem, problem))),
    }


def progress_of(config: Mapping[str, Any], rows: Sequence[Row], log: Sequence[str]) -> dict[str, Any] | None:
    """Return phase, step, number of steps and remaining seconds (None if unknown) of a running run, and the
    last progress line of its console after the last step; None if the recipe has no steps."""
    totals = {
        "sft": int(config.get("sft", {}).get("steps", 0)),
        "rl": sum(int(stage.get("steps", 0)) for stage in config.get("stages", [])),
    }
    done = {phase: max((int(row["step"]) for row in rows_of(rows, phase)), default=0) for phase in totals}
    phase = "sft" if done["sft"] < totals["sft"] and not done["rl"] else "rl"
    if not totals[phase]:
        return None
    recent = rows_of(rows, phase)[-RECENT:]
    steps = recent[-1]["step"] - recent[0]["step"] if recent else 0
    pace_s = (recent[-1]["time_s"] - recent[0]["time_s"]) / steps if steps > 0 else None
    texts = [found[1] for line in log if (found := _TIMED.match(line))]
    last = next((text for text in reversed(texts) if _STEP.match(text) or _WORK.match(text)), "")
    return {
        "phase": "cold start" if phase == "sft" else "RL",
        "step": done[phase],
        "steps": totals[phase],
        "stage": recent[-1]["stage"] if phase == "rl" and recent and len(config["stages"]) > 1 else "",
        "left_s": None if pace_s is None else pace_s * (totals[phase] - done[phase]),
        "work": "" if _STEP.match(last) else last,
    }


def _ending(log: Sequence[str]) -> str:
    """Return why the last start ended, by the console log: the message, or the last line of a traceback."""
    at = max((k for k, line in enumerate(log) if "Z ended: " in line), default=None)
    if at is None:
        return ""
    lines = [log[at].partition("Z ended: ")[2], *log[at + 1 :]]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


@cache
def _base_fields(name: str) -> Mapping[str, Any]:
    """Return the fields of a shipped recipe by name, or the defaults for ""."""
    recipe = load_recipe(RECIPES / f"{name}.toml") if name else Recipe()
    return flat_fields(recipe.model_dump(exclude_none=True))


def differences(config: Mapping[str, Any], base: str) -> list[list[str]]:
    """Return field, value and value of the shipped recipe (or default) where they differ, as texts."""
    return differing_fields([flat_fields(config), _base_fields(base)])


def differing_fields(tables: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return each field whose value differs between flat recipes, with its values as texts."""
    found = []
    for name in sorted({name for table in tables for name in table}):
        values = [table.get(name) for table in tables]
        if any(not _is_same(values[0], value) for value in values[1:]):
            found.append([name, *("not set" if value is None else _toml(value) for value in values)])
    return found


def _toml(value: Any) -> str:
    """Return a value about as config.toml has it; a text without its quotes."""
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def _is_same(value: Any, other: Any) -> bool:
    """Return True for equal values, and for two paths of one name: a recipe's paths depend on its folder."""
    if isinstance(value, str) and isinstance(other, str) and "/" in value and "/" in other:
        return Path(value).name == Path(other).name
    return bool(value == other)


def tiles_of(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return evaluations before and after, rewards, generated tokens and duration; empty without rows."""
    if not rows:
        return []
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    main_set = main_set_of(found)
    sets = sorted(dict.fromkeys(e.set_name for e in found), key=lambda name: name != main_set)
    tiles = [_evaluation_tile(found, set_name) for set_name in sets]
    for name, key in (("reward", "reward/mean"), ("tool errors in correct", "tool/error_share_in_correct")):
        values = [known for row in steps if (known := number(row, key)) is not None]
        if len(values) > 1:
            size = math.ceil(len(values) / 4)
            first, last = math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size
            unit = metric_of(key).unit
            value = f"{format_value(first, unit)} → {format_value(last, unit)}"
            detail = "mean of the first and of the last quarter of the steps"
            tiles.append({"name": name, "value": value, "detail": detail})
    generated = [count for row in steps if (count := number(row, "ledger/generated")) is not None]
    if generated:
        tokens = math.fsum(number(row, "tokens/generated") or 0.0 for row in steps)
        detail = f"{tokens:,.0f} tokens written" if tokens else ""
        value = f"{math.fsum(generated):,.0f}"
        tiles.append({"name": "trajectories generated", "value": value, "detail": detail})
    wall_s = max(float(row["time_s"]) for row in rows)
    tiles.append({"name": "wall time", "value": duration(wall_s), "detail": _steps(steps)})
    return tiles


def _steps(steps: Sequence[Row]) -> str:
    names = list(dict.fromkeys(str(row["stage"]) for row in steps))
    if not steps:
        return "no RL step yet"
    return f"{len(steps)} RL steps" + (
        "" if not names else f", stage {names[0]}" if len(names) == 1 else f", {len(names)} stages"
    )


def _evaluation_tile(found: Sequence[PlottedEvaluation], set_name: str) -> dict[str, str]:
    """Before and after, each with its interval."""
    mine = [e for e in found if e.set_name == set_name]
    first, last = mine[0], mine[-1]
    tasks = f" on {last.num_tasks} tasks" if last.num_tasks else ""
    name = f"{set_name} avg@{last.k}{tasks}"
    if first is last:
        detail = f"{_interval(last)} at step {last.step}"
        return {"name": name, "value": f"{last.value:.2f}", "detail": detail}
    detail = f"{_interval(first)} → {_interval(last)}, 95% interval" if last.low is not None else ""
    return {"name": name, "value": f"{first.value:.2f} → {last.value:.2f}", "detail": detail}


def _interval(e: PlottedEvaluation) -> str:
    return f"[{e.low:.2f}, {e.high:.2f}]" if e.low is not None and e.high is not None else ""


def metrics_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return every metric with its values at all steps, and those of the first and last row that could have
    it as texts."""
    names = sorted({name for row in rows for name in row if "/" in name})
    metrics = []
    for name in names:
        # The rows that could have it: those of its phase.
        phases = {row["phase"] for row in rows if name in row}
        found = [row for row in rows if row["phase"] in phases]
        if phases == {"eval"}:  # beside evaluations there are difficulty filters, and each set has its rows
            family = name.rpartition("/")[0] + "/"
            found = [row for row in found if any(key.startswith(family) for key in row)]
        try:
            unit, meaning = metric_of(name).unit, metric_of(name).meaning
        except UnknownMetricError:
            unit, meaning = "", ""
        # A metric of two phases has two counts of steps: show those of the later one.
        phase = "rl" if "rl" in phases else min(phases)
        shown = [row for row in found if row["phase"] == phase]
        metrics.append({
            "name": name,
            "first": _text(found[0], name, unit),
            "last": _text(found[-1], name, unit),
            "unit": unit,
            "meaning": meaning,
            "phase": phase,
            "x": [row["step"] for row in shown],
            "y": [finite(number(row, name)) for row in shown],
        })  # fmt: skip
    return metrics


def _text(row: Row, name: str, unit: str) -> str:
    """The row's own value. A count or share of something that did not happen is 0, anything else `none`."""
    value = number(row, name)
    if value is None:
        if name in row:
            return "not finite"
        if not is_zero_if_absent(name):
            return "none"
        value = 0.0
    # One decimal more than on a chart: the shares of a whole must add up.
    return f"{100 * value:.1f}%" if unit == "share" else format_value(value, unit)


def _start(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts to reproduce a start of the run, as texts."""
    commit = str(start.get("commit") or "")[:12]
    names = ("rocstar", "Python", "torch", "transformers")
    gpus = [str(gpu) for gpu in start.get("gpus") or []]
    machine = [str(start.get("host")), str(start.get("platform")), f"{start.get('cpus')} CPUs"]
    world = start.get("world_size")
    machine += [", ".join(gpus) or "no GPU", "1 process" if world == 1 else f"{world} processes"]
    return {
        "started": str(start.get("started") or ""),
        "end": _end(start),
        "commit": commit + (" with changes" if commit and start.get("dirty") else ""),
        "versions": ", ".join(f"{name} {start.get(name.lower())}" for name in names),
        "machine": ", ".join(machine),
        "recipe": str(start.get("recipe"))[:12],
        "command": command_of_start(start),
    }


def _end(start: Mapping[str, Any]) -> str:
    status = str(start.get("status"))
    try:
        begun, ended = (datetime.fromisoformat(str(start.get(key))) for key in ("started", "ended"))
    except ValueError:
        return status
    return f"{status} after {duration((ended - begun).total_seconds())}"
