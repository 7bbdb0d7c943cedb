"""The list of names, the file of rows, and a step's time."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.record.metrics import (
    METRICS,
    MetricsFileError,
    MetricsWriter,
    UnknownMetricError,
    check_names,
    metric_of,
    read_metrics,
)
from rocstar.train.record.time_budget import PHASES, TimeBudget, shares, whole_percents


class Clock:
    """A clock that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write(writer: MetricsWriter, step: int, phase: str = "rl") -> None:
    writer.write({"reward/mean": step / 100}, step=step, stage="s", phase=phase)  # type: ignore[arg-type]


def steps_in(path: Path) -> list[tuple[str, int]]:
    return [(row["phase"], row["step"]) for row in read_metrics(path)]


# --- names -----------------------------------------------------------------------------------------------


def test_names_are_listed_once_with_unit_and_meaning() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert all(metric.unit and metric.meaning and "/" in metric.name for metric in METRICS)


def test_the_names_that_others_rely_on_are_listed() -> None:
    check_names([
        "reward/mean", "eval/heldout/avg@4", "eval/heldout/pass@4", "eval/heldout/ci_low", "tool/error_share",
        "tool/error_share_in_correct", "tool/calls_mean", "tool/status/memory_limit", "seq_len/mean",
        "seq_len/max", "is_truncated/mean", "num_turns/mean", "clip/low_fraction", "clip/high_fraction",
        "entropy/mean", "loss/policy", "loss/sft", "optim/grad_norm", "optim/lr", "policy/version",
        "policy/staleness_max", "mismatch_kl/mean", "ratio/max", "groups/no_signal", "groups/used",
        "tokens/generated", "tokens/loss", "time/step",
        *(f"time/{phase}" for phase in PHASES),
        "ledger/generated", "ledger/kept", "ledger/dropped_positive", "ledger/dropped_negative",
        "ledger/no_signal", "ledger/failed",
    ])  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "reward",
        "reward/meen",
        "eval/a/b/avg@4",
        "eval//avg@4",
        "tool/status/",
        "tool/status/{status}",
        "eval/{set}/ci_low",
        "",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownMetricError, match="not listed"):
        check_names({name: 1.0})


def test_a_pattern_matches_one_word() -> None:
    assert metric_of("eval/aime/avg@16").name == "eval/{set}/avg@{k}"
    assert metric_of("eval/aime/ci_high").unit == "reward"


# --- rows ------------------------------------------------------------------------------------------------


def test_a_row_carries_step_stage_phase_and_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "metrics.jsonl", Clock()
    with MetricsWriter(path, clock=clock) as writer:
        clock.now += 2.5
        row = writer.write({"reward/mean": 0.5, "ledger/kept": 8}, step=3, stage="rl-1", phase="rl")
        assert json.loads(path.read_text()) == row, "flushed at once"
    expected = {"step": 3, "stage": "rl-1", "phase": "rl", "time_s": 2.5, "reward/mean": 0.5, "ledger/kept": 8.0}
    assert row == expected
    assert read_metrics(path) == [expected]


def test_an_unlisted_name_writes_nothing(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m.jsonl") as writer, pytest.raises(UnknownMetricError):
        writer.write({"reward/mean": 1.0, "nonsense": 1.0}, step=1, stage="s", phase="rl")
    assert not read_metrics(tmp_path / "m.jsonl")


def test_values_that_are_not_finite_become_null_and_are_counted(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m.jsonl") as writer:
        row = writer.write(
            {"loss/policy": math.nan, "ratio/max": math.inf, "optim/lr": 1e-4}, step=1, stage="s", phase="rl"
        )
    assert row["loss/policy"] is None
    assert row["ratio/max"] is None
    assert row["metrics/nonfinite"] == 2.0
    assert "NaN" not in (tmp_path / "m.jsonl").read_text()


@given(torn=st.integers(1, 70))
def test_a_torn_last_line_is_cut_off_when_the_run_resumes(tmp_path_factory: pytest.TempPathFactory, torn: int) -> None:
    path, clock = tmp_path_factory.mktemp("torn") / "m.jsonl", Clock()
    with MetricsWriter(path, clock=clock) as writer:
        clock.now += 4
        for step in (1, 2, 3):
            write(writer, step)
    path.write_bytes(path.read_bytes()[:-torn])
    assert len(read_metrics(path)) == 2, "a reader leaves the torn line out"
    with MetricsWriter(path, clock=clock) as writer:
        clock.now += 1
        write(writer, 3)
    assert steps_in(path) == [("rl", 1), ("rl", 2), ("rl", 3)]
    assert [row["time_s"] for row in read_metrics(path)] == [4.0, 4.0, 5.0], "the clock goes on"


def test_a_file_of_nothing_but_a_torn_line_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1')
    with MetricsWriter(path) as writer:
        write(writer, 1)
    assert steps_in(path) == [("rl", 1)]


@pytest.mark.parametrize("line", ["hello", "[1]", "{}", '{"step": 1, "stage": "s", "phase": "rl"}'])
def test_another_file_is_not_taken_for_metrics(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(MetricsFileError, match=r"m\.jsonl, line 1"):
        MetricsWriter(path)
    assert path.read_text() == line + "\n", "and is left as it is"


# --- time ------------------------------------------------------------------------------------------------


def test_phases_are_exclusive_and_sum_to_the_step() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    clock.now += 1  # nobody's
    with budget.phase("generate"):
        clock.now += 4
        with budget.phase("reward"):
            clock.now += 2
        clock.now += 1
    with budget.phase("learn"):
        clock.now += 3
    metrics = budget.finish()
    spent = {name: seconds for name, seconds in metrics.items() if seconds}
    assert spent == {"time/generate": 5, "time/reward": 2, "time/learn": 3, "time/other": 1, "time/step": 11}
    check_names(metrics)
    clock.now += 2
    assert budget.finish()["time/step"] == 2, "the next step begins where the last one ended"


def test_a_phase_that_raises_is_still_over() -> None:
    clock = Clock()
    budget = TimeBudget(clock)

    def learn() -> None:
        with budget.phase("learn"):
            clock.now += 2
            raise KeyError

    with pytest.raises(KeyError):
        learn()
    clock.now += 1
    assert budget.finish()["time/learn"] == 2


def test_a_phase_goes_on_into_the_next_step() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    with budget.phase("generate"):
        clock.now += 1
        budget.finish()
        clock.now += 2
    assert budget.finish()["time/generate"] == 2


def test_moved_time_is_taken_from_its_source() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    with budget.phase("generate"):
        clock.now += 4
        budget.move(1, source="generate", target="tool_wait")
        budget.move(99, source="generate", target="reward")
    assert budget.share() == dict.fromkeys(PHASES, 0.0) | {"tool_wait": 0.25, "reward": 0.75}


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_only_a_time_can_be_moved(seconds: float) -> None:
    with pytest.raises(ValueError, match="not negative"):
        TimeBudget(Clock()).move(seconds, source="generate", target="tool_wait")


def test_unknown_phases_are_refused() -> None:
    budget = TimeBudget(Clock())
    with pytest.raises(ValueError, match="unknown phase 'nap'"), budget.phase("nap"):
        pass
    with pytest.raises(ValueError, match="unknown phase"):
        budget.move(1, source="generate", target="nap")


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "leave", "pass", "move"]), st.sampled_from(PHASES), st.floats(0, 1e4)),
        max_size=40,
    )
)
def test_the_parts_sum_to_the_whole_whatever_happens(actions: list[tuple[str, str, float]]) -> None:
    clock = Clock()
    budget, began = TimeBudget(clock), clock.now
    inside = []
    for action, phase, seconds in actions:
        if action == "enter":
            inside.append(budget.phase(phase))
            inside[-1].__enter__()
        elif action == "leave" and inside:
            inside.pop().__exit__(None, None, None)
        elif action == "move":
            budget.move(seconds, source=phase, target="other")
        clock.now += seconds
    parts = budget.share()
    assert sum(whole_percents(parts).values()) in (0, 100)
    assert math.isclose(math.fsum(parts.values()), 1.0 if clock.now > began else 0.0, rel_tol=1e-9)
    metrics = budget.finish()
    assert math.isclose(metrics["time/step"], clock.now - began, rel_tol=1e-9, abs_tol=1e-9)
    assert min(metrics.values()) >= 0


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=9))
def test_whole_percents_sum_to_a_hundred(parts: dict[str, float]) -> None:
    percents = whole_percents(parts)
    assert sum(percents.values()) == (100 if sum(parts.values()) > 0 else 0)
    exact = shares(parts)
    assert all(abs(percents[name] - 100 * exact[name]) < 1 for name in parts)
