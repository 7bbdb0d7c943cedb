"""The blocks of a guide run in order, in one folder, offline, and print what the page shows."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rocstar.engine.chat.chat import load_template
from rocstar.engine.record.json_record import from_record
from rocstar.engine.types import Scored
from rocstar.train import primitives
from rocstar.train.learner.scratch import build_model, train_tokenizer
from rocstar.train.recipe.model_config import ScratchConfig
from rocstar.train.record.callbacks import Callback
from tests.fakes.json_lines import read_folder

from ..needs import modules
from ..warm_python import warm

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
DEADLINE_S = 300.0
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", flags=re.M | re.S)


class Block(NamedTuple):
    """A block of a page, the file that it is written to, and the output that the page shows after it."""

    language: str
    file: str
    text: str
    output: str | None


def blocks(page: str) -> list[Block]:
    found = BLOCK.findall((GUIDES / page).read_text(encoding="utf-8"))
    outputs = [text if language == "text" else None for language, _, text in found]
    return [
        Block(*block, output) for block, output in zip(found, [*outputs[1:], None], strict=True) if block[0] != "text"
    ]


def run(language: str, text: str, folder: Path) -> str:
    """Return the output of a block; it finds the `rocstar` and `python` of this interpreter."""
    command = {"bash": ["bash", "-e", "-c", text], "python": [str(warm().executable), "-c", text]}[language]
    path = f"{warm().executable.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHONWARNINGS"))}
    result = subprocess.run(
        command,
        cwd=folder,
        env={**keep, "PATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, f"{text}\n{result.stderr}"
    return result.stdout


def follow(page: str, folder: Path, *, outputs: int) -> list[str]:
    """Run the blocks of a page; return the output of each.

    A page shows `outputs` of them, and may leave out the first lines of one.
    """
    printed = []
    for language, file, text, output in blocks(page):
        if file:
            (folder / file).write_text(text, encoding="utf-8")
            continue
        printed.append(run(language, text, folder))
        if output is not None:
            assert printed[-1].endswith(output), text
            outputs -= 1
    assert outputs == 0
    return printed


def test_callbacks(tmp_path: Path) -> None:
    follow("callbacks.md", tmp_path, outputs=2)
    lines = (tmp_path / "runs" / "mine" / "watched.txt").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {k}: 8 trajectories" for k in (1, 2)]
    text = (GUIDES / "callbacks.md").read_text(encoding="utf-8")
    events = [name for name in vars(Callback) if name.startswith("on_")]
    assert [event for event in events if f"| `{event}(" not in text] == []


def test_own_data(tmp_path: Path) -> None:
    """The run has the meta and questions of the file, and the system message of the conversations."""
    modules("pyarrow")
    printed = follow("own-data.md", tmp_path, outputs=2)
    records = list(read_folder(tmp_path / "runs" / "mine" / "trajectories"))
    assert len(records) == 3 * 2 * 4
    assert {record["task"]["meta"]["level"] for record in records} == {1, 2, 3, 4}
    for record in records:
        prompt, at = record["segments"][0]["text"], 0
        for message in from_record(record).task.messages:
            at = prompt.index(message["content"], at) + len(message["content"])
    assert any("It is 81." in record["segments"][0]["text"] for record in records)
    assert "72" in next(output for output in printed if "openai/gsm8k:main" in output)
    heldout = str(tmp_path / "mine" / "heldout.parquet")
    assert heldout in (tmp_path / "runs" / "mine" / "config.toml").read_text()


@pytest.mark.timeout(2 * DEADLINE_S)
def test_own_engine(tmp_path: Path) -> None:
    words = ["<answer>\\boxed{42}</answer> What is 12 + 30? python code print result of the tool"] * 40
    tokenizer = train_tokenizer(words, vocab_size=400, template=load_template("compact", None))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    build_model(ScratchConfig(), len(tokenizer), seed=0).config.save_pretrained(tmp_path / "tokenizer")
    follow("own-engine.md", tmp_path, outputs=2)


def test_own_reward(tmp_path: Path) -> None:
    follow("own-reward.md", tmp_path, outputs=5)
    for name, method in (("mine", "distance"), ("short", "own"), ("turns", "distance")):
        records = list(read_folder(tmp_path / "runs" / name / "trajectories"))
        assert len(records) == 2 * 2 * 8
        assert method in {record["outcome"]["method"] for record in records}
        advantages = [r["advantage"] for r in records if r["decision"]["kept"]]
        assert advantages and all(isinstance(a, list) == (name == "turns") for a in advantages)
    assert not (tmp_path / "runs" / "no").exists()


def test_own_environment(tmp_path: Path) -> None:
    follow("own-environment.md", tmp_path, outputs=2)
    records = list(read_folder(tmp_path / "runs" / "number" / "trajectories"))
    assert len(records) == 2 * 2 * 4
    assert {record["outcome"]["method"] for record in records} == {"program"}
    for record in records:
        kind = "odd" if record["task"]["meta"]["row"]["secret"] % 2 else "even"
        assert f"from 1 to 3. End with done. It is {kind}.<|im_end|>" in record["segments"][0]["text"]


def test_own_tool(tmp_path: Path) -> None:
    follow("own-tool.md", tmp_path, outputs=4)


def test_own_loop(tmp_path: Path) -> None:
    follow("own-loop.md", tmp_path, outputs=1)
    page = (GUIDES / "own-loop.md").read_text(encoding="utf-8")
    assert [
        name for name, part in vars(primitives).items() if inspect.isfunction(part) and f"{name}(" not in page
    ] == []
    records = list(read_folder(tmp_path / "runs" / "mine" / "trajectories"))
    assert len(records) == 32
    assert any("Is this the right program?" in s["text"] for record in records for s in record["segments"][2:3])


@pytest.mark.timeout(2 * DEADLINE_S)
def test_own_agent(tmp_path: Path) -> None:
    follow("own-agent.md", tmp_path, outputs=0)
    for name in ("program", "function"):
        records = [from_record(record) for record in read_folder(tmp_path / "runs" / name / "trajectories")]
        assert len(records) == 2 * 4 and all(t.turns and t.given is not None for t in records)
        assert all(isinstance(t.outcome, Scored) for t in records)
        assert all(t.given.reward == (0.1 if name == "function" else None) for t in records if t.given)
