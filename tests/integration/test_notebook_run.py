"""The tiny recipe with the notebook tool, in lockstep: it trains, and the same seed gives the same bits."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import read_records
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import records_file

Rows = Callable[..., list[dict[str, Any]]]
TIMES = ("time_s", "time/")


@pytest.fixture(scope="session")
def recipe(workshop: Any) -> Path:
    """The coin recipe whose calls are cells: the second prints what the first assigned."""
    directory: Path = workshop.directory
    rows = [json.loads(line) for line in (directory / "chat.jsonl").read_text().splitlines()]
    rows = [row for row in rows if len(row["messages"]) == 4]
    for row in rows:
        question, _, result, answer = row["messages"]
        cells = [f"x = {result['content']}", "x"]
        shown = ["(no output)", result["content"]]
        row["messages"] = [question]
        for code, text in zip(cells, shown, strict=True):
            call = json.dumps({"name": "jupyter_code", "arguments": {"code": code}})
            row["messages"] += [
                {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
                {"role": "tool", "name": "jupyter_code", "content": text},
            ]
        row["messages"].append(answer)
    (directory / "cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = workshop.recipe.read_text()
    for old, new in (
        ("[tool]\n", '[[tools]]\nkind = "jupyter"\n\n[tool]\n'),
        ("chat.jsonl", "cells.jsonl"),
        ("max_response_tokens = 100\nmax_turns = 3", "max_response_tokens = 160\nmax_turns = 4"),
        ("steps = 2\nmax_response_tokens = 110", "steps = 0\nmax_response_tokens = 110"),
        ("[engine]\n", "[engine]\ndeterministic = true\n"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = directory / "cells.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def directories(workshop: Any, recipe: Path) -> list[Path]:
    """Two runs of it."""
    made = [workshop.directory / "cells_1", workshop.directory / "cells_2"]
    for directory in made:
        workshop.succeed("train", recipe.name, "--output-dir", str(directory))
    return made


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(TIMES)}


def test_a_step_with_live_interpreters_repeats_bit_for_bit(directories: list[Path], read_rows: Rows) -> None:
    assert [tool.kind for tool in load_recipe(directories[0] / "config.toml").tools] == ["jupyter"]
    first, second = (read_rows(directory, "rl") for directory in directories)
    assert list(map(untimed, first)) == list(map(untimed, second))
    assert any("loss/policy" in row for row in first) and len(first) == 2
    assert any(row["tool/executed_share"] > 0 for row in first)
    assert all(row["tool/session_replays"] == 0 for row in first)
    one, two = ([r | {"times": None} for r in read_records(records_file(d, 2))] for d in directories)
    assert one == two
    calls = [[call for turn in record["turns"] for call in turn["calls"] if call["status"] == "ok"] for record in one]
    carried = [show for cells in calls for set_, show in pairwise(cells) if "x =" in set_["arguments"]["code"]]
    assert any(call["result"] in ("1", "2") for call in carried), "a cell showed what another had assigned"


def test_eval_takes_the_same_path(workshop: Any, recipe: Path, directories: list[Path]) -> None:
    model = directories[0] / "checkpoints" / "step_2"
    ended = workshop.succeed("eval", recipe.name, "--model", str(model), "--json")
    assert json.loads(ended.stdout)["eval/heldout/failed"] == 0
