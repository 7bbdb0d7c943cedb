"""What the tests of the learner share."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.tools.python import PYTHON_SCHEMA
from rocstar.train.learner.scratch import train_tokenizer

from ...warm_python import warm

RANKS = Path(__file__).parents[1] / "ranks"

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a script of ranks/ on a new folder and returns the folder."""

    def run(script: str) -> Path:
        out = tmp_path_factory.mktemp("ranks")
        hidden = ("PYTEST_", "COV_", "PYTHONWARNINGS")
        ended = subprocess.run(
            [str(warm().executable), str(RANKS / script), str(out)],
            env={k: v for k, v in os.environ.items() if not k.startswith(hidden)} | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600.0,
            check=False,
        )
        assert ended.returncode == 0 and "Warning" not in ended.stderr, ended.stderr[-4000:]
        return out

    return run


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    template = load_template("compact", None)
    tokenizer: Any = train_tokenizer(["1 + 1 <answer>2</answer>"], vocab_size=300, template=template)
    return ChatFormat(tokenizer, template, [PYTHON_SCHEMA])


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made
