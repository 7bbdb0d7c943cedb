"""A table of every metric of a run: first value, last value, meaning."""

from collections.abc import Sequence

from markupsafe import Markup

from rocstar.train.record.console_text import number
from rocstar.train.record.metrics import Row, UnknownMetricError, is_zero_if_absent, metric_of
from rocstar.train.record.report.page import part
from rocstar.train.record.report.scales import format_value

NONE = "none"


def numbers_section(rows: Sequence[Row]) -> Markup:
    """The table, folded."""
    names = sorted({name for row in rows for name in row if "/" in name})
    lines = []
    for name in names:
        asked = _rows_of(name, rows)
        try:
            unit, meaning = metric_of(name).unit, metric_of(name).meaning
        except UnknownMetricError:
            unit, meaning = "", ""
        lines.append([name, _text(asked[0], name, unit), _text(asked[-1], name, unit), unit, meaning])
    return part("numbers", lines)


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
            return NONE
        value = 0.0
    # One decimal more than on a chart: the shares of a whole must add up.
    return f"{100 * value:.1f}%" if unit == "share" else format_value(value, unit)
