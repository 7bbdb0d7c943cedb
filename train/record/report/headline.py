"""The headline of a run, for the report and the viewer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.train.record.console_text import duration, number
from rocstar.train.record.metrics import Row, metric_of
from rocstar.train.record.report.curves import PlottedEvaluation, evaluations, main_set_of, rows_of
from rocstar.train.record.report.scales import format_value


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the headline."""

    name: str
    value: str
    detail: str = ""
    is_hero: bool = False


def tiles_of(rows: Sequence[Row]) -> list[Tile]:
    """Return evaluations before and after, rewards, generated tokens and duration; empty without rows."""
    if not rows:
        return []
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    main_set = main_set_of(found)
    tiles = [_evaluation_tile(found, set_name) for set_name in _sets(found, main_set)]
    for name, key in (("reward", "reward/mean"), ("tool errors in correct", "tool/error_share_in_correct")):
        first, last = _quarters(steps, key)
        if first is not None and last is not None:
            unit = metric_of(key).unit
            value = f"{format_value(first, unit)} → {format_value(last, unit)}"
            tiles.append(Tile(name, value, "mean of the first and of the last quarter of the steps"))
    generated = [count for row in steps if (count := number(row, "ledger/generated")) is not None]
    if generated:
        tokens = math.fsum(number(row, "tokens/generated") or 0.0 for row in steps)
        detail = f"{tokens:,.0f} tokens written" if tokens else ""
        tiles.append(Tile("trajectories generated", f"{math.fsum(generated):,.0f}", detail))
    wall_s = max(float(row["time_s"]) for row in rows)
    tiles.append(Tile("wall time", duration(wall_s), _steps(steps)))
    return tiles


def _steps(steps: Sequence[Row]) -> str:
    names = list(dict.fromkeys(str(row["stage"]) for row in steps))
    return f"{len(steps)} RL steps" + (
        "" if not names else f", stage {names[0]}" if len(names) == 1 else f", {len(names)} stages"
    )


def _sets(found: Sequence[PlottedEvaluation], main_set: str | None) -> list[str]:
    names = list(dict.fromkeys(e.set_name for e in found))
    return sorted(names, key=lambda name: name != main_set)


def _evaluation_tile(found: Sequence[PlottedEvaluation], set_name: str) -> Tile:
    """Before and after, each with its interval."""
    mine = [e for e in found if e.set_name == set_name]
    first, last = mine[0], mine[-1]
    tasks = f" on {last.num_tasks} tasks" if last.num_tasks else ""
    name = f"{set_name} avg@{last.k}{tasks}"
    if first is last:
        return Tile(name, f"{last.value:.2f}", f"{_interval(last)} at step {last.step}", is_hero=True)
    detail = f"{_interval(first)} → {_interval(last)}, 95% interval" if last.low is not None else ""
    return Tile(name, f"{first.value:.2f} → {last.value:.2f}", detail, is_hero=True)


def _interval(e: PlottedEvaluation) -> str:
    return f"[{e.low:.2f}, {e.high:.2f}]" if e.low is not None and e.high is not None else ""


def _quarters(steps: Sequence[Row], key: str) -> tuple[float | None, float | None]:
    """Mean over the first and over the last quarter of the steps that have the metric."""
    values = [value for row in steps if (value := number(row, key)) is not None]
    size = math.ceil(len(values) / 4)
    if len(values) < 2:
        return None, None
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size
