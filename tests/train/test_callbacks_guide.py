"""Every block of docs/guide/callbacks.md runs, in order, in one folder, and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstar.train.record.callbacks import Callback

from .test_own_data_guide import blocks, run

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "callbacks.md"


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
    assert len(shown) == 2
    for text, said in shown:
        assert said.splitlines()[-1:] == text.splitlines()


def test_the_callback_of_the_guide_heard_of_the_groups(followed: tuple[Path, list[str]]) -> None:
    folder, _ = followed
    lines = (folder / "runs" / "mine" / "watched.txt").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {k}: 8 trajectories" for k in (1, 2)]


def test_the_guide_lists_every_event() -> None:
    events = [name for name in vars(Callback) if name.startswith("on_")]
    text = GUIDE.read_text(encoding="utf-8")
    assert [event for event in events if f"| `{event}(" not in text] == []
