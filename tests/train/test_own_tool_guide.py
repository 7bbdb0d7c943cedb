"""Every block of docs/guide/own-tool.md runs, in order, in one folder, and prints what it says."""

from pathlib import Path

from .test_own_data_guide import blocks, run

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "own-tool.md"


def test_blocks_print_what_the_guide_says(tmp_path: Path) -> None:
    compared = 0
    for language, text, said in blocks(GUIDE):
        printed = run(language, text, tmp_path)
        if said is not None:
            assert printed == said, text
            compared += 1
    assert compared == 4
