"""Each signature that is planted in a run is reported within 5 steps, and a healthy run is let be."""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.statistics.paired import PairedDifference
from rocstar.train.reading.diagnosis.alarms import SOUNDS, HeldOutChange, History
from rocstar.train.reading.diagnosis.ringing import ALARMS, KINDS, QUIET, Episode, Ringing, Witness
from rocstar.train.record.metrics import check_names

from .made_runs import PLANTS, Rows, healthy, planted

FALLS_ILL, LATE = 15, 5
HELD_OUT, HELD_OUT_FALL = "reward_without_held_out", "held_out_fall"


def changed(after: int, difference: float, low: float, high: float, **sets: PairedDifference) -> HeldOutChange:
    """Return a change since step 0; without sets, of one set."""
    sets = sets or {"held": of_set(difference, low, high)}
    return HeldOutChange(before=0, after=after, difference=difference, interval=(low, high), sets=sets)


def of_set(difference: float, low: float, high: float) -> PairedDifference:
    return PairedDifference(difference=difference, interval=(low, high), p=0.5, detectable=0.1, num_questions=16)


def heard(rows: Rows, held_out: HeldOutChange | None = None) -> list[Episode]:
    ringing = Ringing(Path("no evaluations"))
    ringing._change = held_out
    for row in rows:
        ringing.add_row(row)
    return ringing.episodes


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_signature_is_reported_within_five_steps(name: str) -> None:
    found = {episode.alarm.name: episode for episode in heard(planted(name, first=FALLS_ILL, steps=24))}
    assert name in found and found[name].seen
    assert FALLS_ILL <= found[name].first < FALLS_ILL + LATE
    assert all(episode.first >= FALLS_ILL for episode in found.values())


def test_every_alarm_has_a_plant_and_every_function_is_an_alarms() -> None:
    assert {alarm.name for alarm in ALARMS} == {*PLANTS, HELD_OUT, HELD_OUT_FALL} == set(SOUNDS)


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_run_rings_no_alarm(seed: int) -> None:
    assert [(e.alarm.name, e.first, e.seen) for e in heard(healthy(60, seed))] == []


def test_held_out_questions_that_do_not_follow_are_told() -> None:
    rows = healthy(40)
    flat = changed(40, 0.01, -0.03, 0.05)
    (found,) = heard(rows[:40], flat)[:1]
    assert found.alarm.name == HELD_OUT and "held-out questions by +1.0% [-3.0%, +5.0%]" in found.seen
    unsure = changed(40, 0.01, -0.3, 0.32)
    followed = changed(40, 0.4, 0.3, 0.5)
    assert heard(rows, unsure) == heard(rows, followed) == []


def test_a_fall_on_held_out_questions_is_reported_whatever_the_training_reward_says() -> None:
    """As of SmolLM2-135M with a random reward, in ten steps: 0.51 to 0.08 solved, training reward 0.5 throughout."""
    fall = changed(10, -0.39, -0.45, -0.33)
    assert [e.alarm.name for e in heard(healthy(10), fall)] == [HELD_OUT_FALL]
    unsure = changed(10, -0.1, -0.21, 0.01)
    small = changed(10, -0.03, -0.05, -0.01)
    assert heard(healthy(10), unsure) == heard(healthy(10), small) == []


def test_a_rise_in_one_set_hides_no_fall_in_another() -> None:
    """As of SmolLM2-135M in 44 steps: held out 0.66 to 0.98, families without reinforcement 0.63 to 0.45."""
    parts = {"heldout": of_set(0.32, 0.18, 0.47), "unseen": of_set(-0.17, -0.32, -0.02)}
    (found,) = heard(healthy(10), changed(10, 0.075, -0.03, 0.18, **parts))
    assert found.alarm.name == HELD_OUT_FALL and found.seen == "from step 0 to 10: unseen by -17.0% [-32.0%, -2.0%]"
    parts["unsure"] = of_set(-0.3, -0.7, 0.1)  # a larger fall that may be chance hides none either
    (again,) = heard(healthy(10), changed(10, -0.05, -0.3, 0.2, **parts))
    assert again.seen == found.seen


def test_definitions_are_whole() -> None:
    for alarm in ALARMS:
        assert alarm.kind in KINDS and alarm.says.endswith(".") and alarm.todo.endswith(".") and alarm.source
        assert alarm.witness is None or alarm.witness in get_args(Witness)
        check_names(alarm.needs)
        check_names([f"alarm/{alarm.name}"])
    order = [KINDS.index(alarm.kind) for alarm in ALARMS]
    assert order == sorted(order)


NUMBERS = st.none() | st.floats(allow_nan=False, width=32) | st.sampled_from([0.0, 1.0, 0.5, 1e30])
NAMES = sorted({name for row in healthy(1) for name in row} - {"step", "stage", "phase"})


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), NUMBERS), max_size=30))
def test_any_row_is_looked_at_without_an_error(rows: list[dict[str, Any]]) -> None:
    numbered = [{**row, "step": k} for k, row in enumerate(rows)]
    change = changed(len(rows), 0.0, -0.1, 0.1)
    for k in range(len(rows) + 1):
        for alarm in ALARMS:
            alarm.sounds(History(rows=numbered[:k], held_out=change))


def test_an_alarm_that_comes_back_soon_is_the_same() -> None:
    def episodes(gap: int) -> int:
        rows = healthy(20 + gap)
        for row in (rows[10], rows[10 + gap]):
            row["gate/paused"] = 1.0
        return len(heard(rows))

    assert (episodes(QUIET), episodes(QUIET + 1)) == (1, 2)


def test_what_mends_itself_is_let_be() -> None:
    """Truncation that is high at first and falls, as in a run whose policy learns to end."""
    rows = healthy(30)
    for row in rows:
        row["is_truncated/mean"] = 0.5 * 0.85 ** row["step"] + 0.02
    assert heard(rows) == []
    for row in rows:
        row["is_truncated/mean"] = 0.3
    assert [e.alarm.name for e in heard(rows)] == ["truncation"]


def test_few_trials_need_a_larger_rise() -> None:
    """A miniature: ten calls a step may rise by 10 points by chance."""
    rows = healthy(20)
    for row in rows:
        row |= {"ledger/generated": 16.0, "ledger/failed": 0.0}
        row["tool/error_share_in_correct"] = 0.1 if row["step"] < 15 else 0.3
    assert "tool_errors_in_correct" not in {e.alarm.name for e in heard(rows)}
