"""The console shows what it is given, fits its width, and never stumbles over what is missing."""

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as RichConsole

from rocstar.engine.progress.progress import Attempts, attempting, working
from rocstar.train.record.console import Console
from rocstar.train.record.console_text import (
    apportion,
    evaluation_lines,
    progress_bar,
    sparkline,
    step_time,
    time_percents,
)
from rocstar.train.record.metrics import METRICS
from rocstar.train.record.time_budget import PHASES

ROW: dict[str, Any] = {
    "step": 12, "stage": "rl-1", "phase": "rl", "reward/mean": 0.53, "tool/error_share": 0.2,
    "tool/error_share_in_correct": 0.12, "seq_len/mean": 143.4, "num_turns/mean": 2.1,
    "is_truncated/mean": None,
    "time/step": 3.2, "time/generate": 1.6, "time/tool_wait": 0.8, "time/learn": 0.8,
    "ledger/generated": 64.0, "ledger/kept": 32.0, "ledger/dropped_positive": 32.0, "ledger/failed": 0.0,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(console: Console, width: int = 80) -> str:
    """The panel as plain text."""
    page = RichConsole(file=io.StringIO(), width=width)
    page.print(console.drawn())
    return page.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_one_plain_line_per_step_without_a_terminal() -> None:
    out = io.StringIO()
    with Console(40, ["rl-1"], file=out) as console:
        console.on_step(ROW)
        console.on_step(ROW | {"step": 13})
    first, second = out.getvalue().splitlines()
    assert first == (
        "step 12/40  reward 0.53  tool errors 20%  in correct 12%  tokens 143  turns 2.1  "
        "3.2s (generate 50% tool_wait 25% learn 25%)"
    )
    assert second.startswith("step 13/40")


def test_evaluations_and_notes_are_lines_of_their_own() -> None:
    out = io.StringIO()
    with Console(40, [], file=out) as console:
        console.note("checkpoint [bold]step_10[/bold] " + "x" * 100)
        console.on_evaluation({"eval/heldout/avg@4": 0.29, "eval/heldout/ci_low": 0.2, "eval/heldout/ci_high": 0.4})
    note, evaluation = out.getvalue().splitlines()
    assert note == "checkpoint [bold]step_10[/bold] " + "x" * 100, "neither markup nor wrapped"
    assert evaluation == "eval heldout  avg@4 0.29 [0.20, 0.40]"


def test_sft_progress_is_told_ten_times() -> None:
    out = io.StringIO()
    with Console(40, [], file=out) as console:
        for step in range(1, 121):
            console.on_cold_start(step, 120, {"loss/sft": 3.0 - step / 60})
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1] == "sft 120/120  loss 1.000"


def test_the_panel_shows_a_run_in_80_columns() -> None:
    now = [0.0]
    console = Console(40, ["rl-1", "rl-2"], file=io.StringIO(), clock=lambda: now[0])
    now[0] = 7.0
    for step in range(1, 41):
        console.on_step(ROW | {"step": step, "reward/mean": step / 40, "is_truncated/mean": 0.02})
    text = drawn(console)
    for part in ("step 40/40", "rl-1 (1 of 2)", "0.03 → 1.00", "generate 50%", "3.2s/step", "64 generated", "7s"):
        assert part in text
    assert "failed" not in text, "an empty bucket is not worth a word"
    assert "left" not in text
    assert {len(line) for line in text.splitlines()} == {80}
    console.on_step(ROW | {"step": 30})
    assert "about 32s left" in drawn(console)


def test_a_long_legend_takes_a_second_line() -> None:
    console = Console(40, [], file=io.StringIO())
    console.on_step({"time/step": 8.0} | {f"time/{name}": 1.0 for name in PHASES})
    lines = drawn(console).splitlines()
    assert [len(re.findall(r"■ [a-z_ ]+ 1[12]%", line)) for line in lines[-3:-1]] == [5, 4]


def test_the_panel_before_and_during_sft() -> None:
    console = Console(40, ["rl-1"], file=io.StringIO())
    assert "step 0/40" in drawn(console)
    console.on_cold_start(30, 120, {"loss/sft": 1.25})
    assert "sft 30/120  loss 1.250" in drawn(console)
    console.on_step(ROW)
    assert "sft" not in drawn(console)


def test_the_panel_shows_the_inside_of_a_step() -> None:
    now = [0.0]
    console = Console(40, ["rl-1"], file=io.StringIO(), clock=lambda: now[0])
    attempts = Attempts(total=1024)
    with (
        console.progress.installed(),
        working("step 1", unit="groups", total=32, attempts=attempts) as work,
        attempting("s1/a/7"),
    ):
        now[0], work.done, attempts.ended, attempts.tokens = 200.0, 12, 400, 240_000
        text = drawn(console)
    assert {len(line) for line in text.splitlines()} == {80}
    inside = " ".join(text.replace("│", " ").split())
    assert "step 0/40 3m20s" in inside
    assert (
        "step 1: 12 of 32 groups, 400 of 1,024 attempts, 1 in flight (2/s, 1.2k tokens/s), 3m20s, "
        "about 5m12s left slowest: s1/a/7, turn 1, 3m20s"
    ) in inside
    assert "slowest" not in drawn(console)


def test_the_log_has_what_a_pipe_would_get_also_from_a_terminal(terminal: Terminal) -> None:
    said: list[str] = []
    log = SimpleNamespace(write=said.append)
    piped = io.StringIO()
    for file in (terminal, piped):
        with Console(40, ["rl-1"], file=file, log=log if file is terminal else None) as console:
            console.on_cold_start(12, 120, {"loss/sft": 2.0})
            console.on_step(ROW)
            console.note("a note stays")
    assert said == piped.getvalue().splitlines() and len(said) == 3


def test_on_a_terminal_the_panel_is_live_and_goes(terminal: Terminal) -> None:
    with Console(40, ["rl-1"], file=terminal) as console:
        console.on_cold_start(12, 120, {"loss/sft": 2.0})
        console.on_step(ROW)
        console.note("a note stays")
        assert "a note stays" in terminal.getvalue()
    assert " rocstar " in terminal.getvalue()
    assert "step 12/40  reward" not in terminal.getvalue(), "no plain lines beside the panel"


names = st.sampled_from(["step", "stage", "phase", "eval/a/avg@4", *ROW]) | st.sampled_from([m.name for m in METRICS])
rows = st.dictionaries(names, st.none() | st.floats() | st.integers(0, 10**6))


@given(st.lists(rows, max_size=4), st.integers(20, 120))
def test_nothing_that_is_missing_or_odd_breaks_it(seen: list[dict[str, Any]], width: int) -> None:
    out = io.StringIO()
    with Console(0, ["rl-1"], file=out) as console:
        for row in seen:
            console.on_step(row)
            drawn(console, width)


def test_bare_metrics_count_their_steps() -> None:
    out = io.StringIO()
    with Console(2, [], file=out) as console:
        console.on_step({"reward/mean": 0.5})
        console.on_step({"time/step": 0.24})
    assert out.getvalue() == "step 1/2  reward 0.50\nstep 2/2  0.24s\n"


def test_evaluation_lines_name_every_set() -> None:
    row = {
        "eval/b/avg@4": 0.5,
        "eval/a/pass@4": 0.25,
        "eval/a/avg@4": 0.125,
        "eval/a/failed": 0.0,
        "eval/c/avg@4": None,
    }
    assert evaluation_lines(row) == ["eval b  avg@4 0.50", "eval a  avg@4 0.12  pass@4 25%"]


@pytest.mark.parametrize(
    ("values", "width", "top", "text"),
    [
        ([], 5, None, ""),
        ([0, 0], 5, None, "▁▁"),
        ([0, 0.5, 1], 5, 1.0, "▁▅█"),
        ([0, 1, 2, 3], 2, None, "▂█"),
        ([-1, 9], 5, 1.0, "▁█"),
    ],
)
def test_sparkline(values: list[float], width: int, top: float | None, text: str) -> None:
    assert sparkline(values, width, top) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.018, "0.02s"), (3.21, "3.2s"), (12.4, "12s"), (187, "3m07s")])
def test_step_time(seconds: float, text: str) -> None:
    assert step_time(seconds) == text


def test_a_time_that_no_phase_explains_is_not_called_other() -> None:
    assert time_percents({"time/other": 0.018}) == {}
    assert time_percents({"time/other": 1.0, "time/learn": 3.0}) == {"learn": 75, "other": 25}


def test_bars() -> None:
    assert progress_bar(1, 4, 8) == "━━╌╌╌╌╌╌"
    assert progress_bar(9, 4, 8) == "━" * 8
    assert progress_bar(0, 0, 3) == "╌╌╌"
    assert apportion({"a": 50, "b": 25, "c": 25}, 10) == {"a": 5, "b": 3, "c": 2}
    assert time_percents({"time/generate": 2.0, "time/learn": 1.0}) == {"generate": 67, "learn": 33}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(lambda p: sum(p) > 0), st.integers(1, 80))
def test_a_bar_is_as_wide_as_it_should_be(parts: list[int], width: int) -> None:
    total = sum(parts)
    percents = {str(i): part for i, part in enumerate(parts)}
    if total == 100:
        assert sum(apportion(percents, width).values()) == width
    row = {f"time/{name}": float(part) for name, part in zip(("generate", "learn", "eval"), parts, strict=False)}
    if any(row.values()):
        assert sum(apportion(time_percents(row), width).values()) == width
    assert not re.search(r"-\d", str(apportion(percents, width)))
