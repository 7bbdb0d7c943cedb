"""Facts of a run: the values of its first and last step, and a sentence about each start."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.reading.view.run_facts import numbers_of, starts_of, tiles_of
from rocstar.train.recipe.config import Recipe
from rocstar.train.record.manifest import recorded
from rocstar.train.record.metrics import is_zero_if_absent, read_metrics


def row(step: int, phase: str = "rl", **metrics: float | None) -> dict[str, Any]:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {"step": step, "stage": phase, "phase": phase, "time_s": 1.0} | named


def cells_of(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """First and last value by metric, as the page shows them."""
    return {name: (first, last) for name, first, last, _, _ in numbers_of(rows)}


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


def test_the_headline_has_evaluations_and_sums(run_dir: Path) -> None:
    found = [tuple(tile.values()) for tile in tiles_of(read_metrics(run_dir / "metrics.jsonl"))]
    assert found[0] == (
        "heldout avg@4 on 64 tasks",
        "0.29 → 0.95",
        "[0.21, 0.35] → [0.87, 1.00], 95% interval",
    )
    assert found[1][:2] == ("easy avg@4 on 64 tasks", "0.21 → 0.88")
    assert ("trajectories generated", "3,840") in [one[:2] for one in found]
    assert found[-1][2] == "60 RL steps, 2 stages"
    (tile, _) = tiles_of([row(0, "eval") | {"eval/aime/avg@8": 0.4}])
    assert (tile["name"], tile["value"]) == ("aime avg@8", "0.40"), "one evaluation is no before and after"
    assert tiles_of([]) == []


def test_there_is_a_sentence_about_every_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["rocstar", "train", "recipes/quickstart.toml"])
    with recorded(tmp_path, Recipe(), world_size=1):
        pass
    (start,) = json.loads((tmp_path / "manifest.json").read_text())["starts"]
    first = start | {"status": "interrupted", "ended": None, "commit": "0123456789abcdef", "dirty": True}
    second = start | {"started": "2026-01-31T12:00:00+00:00", "ended": "2026-01-31T12:03:07+00:00"}
    second |= {"world_size": 4, "gpus": ["MI300X"] * 2, "commit": None}
    (tmp_path / "manifest.json").write_text(json.dumps({"v": 1, "starts": [first, second]}))
    text = " ".join(starts_of(tmp_path))
    for part in (
        f"Start 1, {start['started']}: interrupted. rocstar",
        "(0123456789ab with changes), Python",
        "no GPU, 1 process. Recipe",
        "Start 2, 2026-01-31T12:00:00+00:00: complete after 3m07s.",
        "MI300X, MI300X, 4 processes",
        "rocstar train recipes/quickstart.toml",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("manifest", "said"), [(None, ""), ("torn", "is damaged"), ('{"v": 1, "starts": [{}]}', "Start 1")]
)
def test_a_manifest_may_be_missing_or_damaged(tmp_path: Path, manifest: str | None, said: str) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    assert said in " ".join(starts_of(tmp_path))
