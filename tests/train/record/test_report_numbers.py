"""The table of all numbers: what it says of the last step is what the last step had."""

import re
from html import unescape
from typing import Any

import pytest

from rocstar.train.record.metrics import is_zero_if_absent
from rocstar.train.record.report.numbers import numbers_section


def row(step: int, phase: str = "rl", **metrics: float | None) -> dict[str, Any]:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {"step": step, "stage": phase, "phase": phase, "time_s": 1.0} | named


def cells_of(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """First and last value by metric, as the page shows them."""
    lines = re.findall(r"<tr>(<td.*?)</tr>", numbers_section(rows))
    cells = [[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", line)] for line in lines]
    return {name: (first, last) for name, first, last, _, _ in cells}


def test_a_reason_that_nobody_ended_for_in_the_last_step_is_zero_and_the_shares_add_up() -> None:
    rows = [
        row(
            1, finish__answered=0.953, finish__max_tokens=0.047, tool__status__error=3.0, tool__calls_mean=1.0
        ),
        row(2, finish__answered=0.961, finish__max_turns=0.039, failed__deadline=2.0, tool__calls_mean=1.0),
    ]
    cells = cells_of(rows)
    assert cells["finish/max_tokens"] == ("4.7%", "0.0%") and cells["finish/max_turns"] == ("0.0%", "3.9%")
    assert cells["tool/status/error"] == ("3.00", "0") and cells["failed/deadline"] == ("0", "2.00")
    for end in (0, 1):
        shares = [float(ends[end][:-1]) for name, ends in cells.items() if name.startswith("finish/")]
        assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))


def test_what_the_last_step_did_not_measure_is_none() -> None:
    """No update was made in it, so it has no loss; zero would be a lie."""
    cells = cells_of([row(1, loss__policy=0.5, optim__lr=1e-3), row(2, optim__lr=None)])
    assert cells["loss/policy"] == ("0.50", "none") and cells["optim/lr"] == ("0.001", "not finite")


def test_phases_and_sets_have_their_own_rows() -> None:
    rows = [
        row(5, "sft", loss__sft=3.0),
        row(0, "eval") | {"eval/heldout/avg@4": 0.2, "eval/heldout/failed": 1.0},
        row(1, reward__mean=0.3),
        row(1, "eval", difficulty__tasks_seen=8.0),
        row(2, reward__mean=0.4),
        row(2, "eval") | {"eval/easy/avg@4": 0.9},
        row(2, "eval") | {"eval/heldout/avg@4": 0.6},
    ]
    cells = cells_of(rows)
    assert cells["eval/heldout/avg@4"] == ("0.20", "0.60") and cells["eval/easy/avg@4"] == ("0.90", "0.90")
    assert cells["eval/heldout/failed"] == ("1.00", "none")
    assert cells["loss/sft"] == ("3.00", "3.00") and cells["reward/mean"] == ("0.30", "0.40")
    assert cells["difficulty/tasks_seen"] == ("8.00", "8.00")


def test_only_counts_of_what_may_not_happen_are_zero_if_absent() -> None:
    assert is_zero_if_absent("finish/max_tokens") and is_zero_if_absent("failed/deadline")
    assert not is_zero_if_absent("reward/mean") and not is_zero_if_absent("engine/kv_peak/a")
    assert not is_zero_if_absent("unknown")
