"""Every block of docs/guide/own-engine.md runs, in order, in one folder, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.engine.chat.chat import load_template
from rocstar.train.learner.scratch import build_model, train_tokenizer
from rocstar.train.recipe.model_config import ScratchConfig

from ..warm_python import warm

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "own-engine.md"
DEADLINE_S = 300.0
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", flags=re.M | re.S)


def run(language: str, text: str, folder: Path) -> str:
    """What the block prints. It finds `rocstar` and `python` where this interpreter lies."""
    command = {"bash": ["bash", "-e", "-c", text], "python": [str(warm().executable), "-c", text]}[language]
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHONWARNINGS"))}
    path = f"{warm().executable.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
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


@pytest.mark.timeout(2 * DEADLINE_S)
def test_blocks_run_and_print_what_the_guide_says(tmp_path: Path) -> None:
    words = ["<answer>\\boxed{42}</answer> What is 12 + 30? python code print result of the tool"] * 40
    tokenizer = train_tokenizer(words, vocab_size=400, template=load_template("compact", None))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    build_model(ScratchConfig(), len(tokenizer), seed=0).config.save_pretrained(tmp_path / "tokenizer")
    printed, shown = "", 0
    for language, file, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if language == "text":
            shown += 1
            assert printed == text
        elif file:
            (tmp_path / file).write_text(text, encoding="utf-8")
        else:
            printed = run(language, text, tmp_path)
    assert shown == 2


def test_links_of_the_guide_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)\s#]+)", GUIDE.read_text(encoding="utf-8"))
    assert targets and not [t for t in targets if not (GUIDE.parent / t).exists()]
