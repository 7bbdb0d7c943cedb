"""`rocstar sandbox bench`: every row is measured and checked, and a wrong answer is counted."""

import argparse
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox import bench
from rocstar.sandbox.cli import build_parser
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError
from tests.fakes.sandbox import FakeSandbox, ok


def correct_sandbox(wrong_every: int = 0) -> FakeSandbox:
    """Answers the programs of the benchmark; every `wrong_every`-th answer is wrong."""
    numbers = itertools.count(1)

    def answer(request: ExecRequest) -> ExecResult:
        if wrong_every and next(numbers) % wrong_every == 0:
            return ok("another call's answer\n")
        number = request.code.rstrip(")").replace("(", " ").split()[-1]
        return ok(f"x**3/3 {number}\n" if "sympy" in request.code else f"{number}\n")

    return FakeSandbox(answer)


async def test_every_row_is_measured_with_all_answers_right() -> None:
    rows = await bench.bench(correct_sandbox(), list(bench.PROGRAMS), seconds=0.05)
    assert [row.wrong for row in rows] == [0] * 5
    assert all(row.calls > 0 and row.calls_per_s > 0 for row in rows)
    assert [row.p50_ms is None for row in rows] == [True, False, True, False, False]


async def test_a_machine_too_busy_to_begin_in_time_is_measured_all_the_same() -> None:
    rows = await bench.bench(correct_sandbox(), ["print"], seconds=0.0)
    assert all(row.calls > 0 for row in rows)


async def test_wrong_answers_and_failures_are_counted() -> None:
    rows = await bench.bench(correct_sandbox(wrong_every=4), ["print"], seconds=0.02)
    assert rows[0].wrong == rows[0].calls // 4
    assert not bench.is_right(SandboxError("gone", kind="zygote_died", retryable=True), "1")


def test_no_two_programs_are_the_same() -> None:
    codes = [request.code for name in bench.PROGRAMS for request, _ in bench.requests(name, 7, 50)]
    assert len(set(codes)) == len(codes)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1.0))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = bench.percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_a_percentile_of_nothing_or_of_no_share_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError):
        bench.percentile(values, share)


def test_a_table_lines_up_and_shows_none_as_a_dash() -> None:
    text = bench.table(("name", "x"), [("a", 1.2345), ("long", None), ("b", 1234.56)])
    assert text.splitlines() == ["name     x", "----  ----", "a     1.23", "long     -", "b     1235"]


def parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["bench", *arguments])


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "3601", "soon"])
def test_seconds_that_make_no_sense_exit_with_2(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--seconds", seconds)
    assert stop.value.code == 2
    assert seconds in capsys.readouterr().err


def test_the_verb_runs_and_says_which_isolation_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse("--seconds", "0.3", "--stdlib-only", "--json")
    assert options.run(options) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["wrong"] for row in shown["rows"]] == [0, 0, 0]
    assert shown["cores"] >= 1 and shown["isolation"]
    options = parse("--seconds", "0.3", "--stdlib-only")
    assert options.run(options) == 0
    assert "CPU ms/call" in capsys.readouterr().out
