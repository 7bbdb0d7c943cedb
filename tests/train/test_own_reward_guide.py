"""Every block of docs/guide/own-reward.md runs, in order, in one folder, offline, and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstar.engine.record.reading import read_folder

from .test_own_data_guide import blocks, run

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "own-reward.md"


@pytest.fixture(scope="session")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of one who did all that the guide says, and what each block printed."""
    folder = tmp_path_factory.mktemp("guide")
    return folder, [run(language, text, folder) for language, text, _ in blocks(GUIDE)]


def test_blocks_print_what_the_guide_says(followed: tuple[Path, list[str]]) -> None:
    _, printed = followed
    shown = [
        (text, said) for (_, _, text), said in zip(blocks(GUIDE), printed, strict=True) if text is not None
    ]
    assert len(shown) >= 4
    for text, said in shown:
        assert said == text


def test_the_runs_of_the_guide_learned_from_what_they_name(followed: tuple[Path, list[str]]) -> None:
    folder, _ = followed
    for name, method in (("mine", "distance"), ("short", "own"), ("turns", "distance")):
        records = list(read_folder(folder / "runs" / name / "trajectories"))
        assert len(records) == 2 * 2 * 8
        assert method in {record["outcome"]["method"] for record in records}
        advantages = [r["advantage"] for r in records if r["decision"]["kept"]]
        assert advantages and all(isinstance(a, list) == (name == "turns") for a in advantages)
    assert not (folder / "runs" / "no").exists()
