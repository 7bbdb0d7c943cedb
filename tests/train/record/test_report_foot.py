"""The foot of the report: what ran, readable, and unable to act."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.recipe.config import Recipe
from rocstar.train.record.manifest import recorded
from rocstar.train.record.report.foot import foot


def test_it_tells_every_start_of_the_run(
    tmp_path: Path, tags_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["rocstar", "train", "recipes/quickstart.toml"])
    with recorded(tmp_path, Recipe(), world_size=1):
        pass
    (start,) = json.loads((tmp_path / "manifest.json").read_text())["starts"]
    first = start | {"status": "interrupted", "ended": None, "commit": "0123456789abcdef", "dirty": True}
    second = start | {"started": "2026-01-31T12:00:00+00:00", "ended": "2026-01-31T12:03:07+00:00"}
    second |= {"world_size": 4, "gpus": ["MI300X"] * 2, "commit": None}
    (tmp_path / "manifest.json").write_text(json.dumps({"v": 1, "starts": [first, second]}))
    text = tags_of(foot(tmp_path)).text
    for part in (
        f"Start 1, {start['started']}: interrupted. rocstar",
        "(0123456789ab with changes), Python",
        "no GPU, 1 process. Recipe",
        "Start 2, 2026-01-31T12:00:00+00:00: complete after 3m07s.",
        "MI300X, MI300X, 4 processes",
        "rocstar train recipes/quickstart.toml",
    ):
        assert part in text, part


def test_a_run_without_a_manifest_or_with_a_damaged_one_has_a_foot(tmp_path: Path, tags_of: Any) -> None:
    assert "Made from" in tags_of(foot(tmp_path)).text
    (tmp_path / "manifest.json").write_text("torn")
    assert "is damaged" in tags_of(foot(tmp_path)).text
    (tmp_path / "manifest.json").write_text('{"v": 1, "starts": [{}]}')
    assert "Start 1" in tags_of(foot(tmp_path)).text


def test_what_a_manifest_holds_cannot_act(tmp_path: Path, tags_of: Any, attack: str) -> None:
    start = {
        name: attack for name in ("host", "platform", "rocstar", "commit", "status", "recipe", "started")
    }
    start |= {"command": [attack], "gpus": [attack]}
    (tmp_path / "manifest.json").write_text(json.dumps({"v": 1, "starts": [start]}))
    tags = tags_of(foot(tmp_path))
    assert not {"script", "img"} & {tag for tag, _ in tags.found} and attack in tags.text
