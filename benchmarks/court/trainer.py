"""`rocstar train` in forks of one process that has imported it: the imports are half of a short run's CPU time."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
IMPORTED: Final = (
    *("rocstar.train.main", "rocstar.train.compose.start", "rocstar.train.evaluation.during_training"),
    *("transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3"),
    *("scipy.optimize", "scipy.stats", "reasoning_gym"),
)
FORKS: Final = multiprocessing.get_context("forkserver")


def train(words: Sequence[str], log: Path) -> int:
    """Run `rocstar train` with these words; its output is appended to `log`. Return the exit code."""
    FORKS.set_forkserver_preload(list(IMPORTED))
    process = FORKS.Process(target=_train, args=(list(words), log))
    process.start()
    process.join()
    return process.exitcode or 0


def _train(words: list[str], log: Path) -> None:
    threading.Thread(target=_end_with_court, daemon=True).start()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path.append(str(HERE))  # budget.py, rewards.py
    os.nice(10)
    sys.argv = ["rocstar", "train", *words]
    sys.exit(importlib.import_module("rocstar.train.cli").main(sys.argv[1:]))


def _end_with_court() -> None:
    """End this process at once when the court is dead: the next court resumes the run."""
    court = multiprocessing.parent_process()
    assert court is not None
    court.join()
    os._exit(1)
