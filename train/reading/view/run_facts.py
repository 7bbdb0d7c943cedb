"""Facts of a run as text: its headline, a table of all metrics, and its starts."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rocstar.engine.charts.drawing import format_value
from rocstar.engine.progress.progress import duration
from rocstar.train.reading.view.curves import PlottedEvaluation, evaluations, main_set_of, rows_of
from rocstar.train.record.console_text import number
from rocstar.train.record.manifest import ManifestError, read_manifest
from rocstar.train.record.metrics import Row, UnknownMetricError, is_zero_if_absent, metric_of


def tiles_of(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return evaluations before and after, rewards, generated tokens and duration; empty without rows."""
    if not rows:
        return []
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    main_set = main_set_of(found)
    sets = sorted(dict.fromkeys(e.set_name for e in found), key=lambda name: name != main_set)
    tiles = [_evaluation_tile(found, set_name) for set_name in sets]
    for name, key in (("reward", "reward/mean"), ("tool errors in correct", "tool/error_share_in_correct")):
        first, last = _quarters(steps, key)
        if first is not None and last is not None:
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


def _quarters(steps: Sequence[Row], key: str) -> tuple[float | None, float | None]:
    """Mean over the first and over the last quarter of the steps that have the metric."""
    values = [value for row in steps if (value := number(row, key)) is not None]
    size = math.ceil(len(values) / 4)
    if len(values) < 2:
        return None, None
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size


NUMBERS = ("metric", "first", "last", "unit", "meaning")


def numbers_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return every metric with its values in the first and the last row that could have it."""
    names = sorted({name for row in rows for name in row if "/" in name})
    lines = []
    for name in names:
        asked = _rows_of(name, rows)
        try:
            unit, meaning = metric_of(name).unit, metric_of(name).meaning
        except UnknownMetricError:
            unit, meaning = "", ""
        lines.append([name, _text(asked[0], name, unit), _text(asked[-1], name, unit), unit, meaning])
    return lines


def _rows_of(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows that could have the metric: those of its phase; of evaluations, those of its set."""
    phases = {row["phase"] for row in rows if name in row}
    found = [row for row in rows if row["phase"] in phases]
    if phases == {"eval"}:  # beside evaluations there are difficulty filters, and each set has its rows
        family = name.rpartition("/")[0] + "/"
        found = [row for row in found if any(key.startswith(family) for key in row)]
    return found


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


def starts_of(run_dir: Path) -> list[str]:
    """Return a sentence about each start of the run, or the reason why manifest.json cannot be read."""
    try:
        return [_sentence(start, k) for k, start in enumerate(read_manifest(run_dir), 1)]
    except ManifestError as error:
        return [str(error)]


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
