"""A run whose programs and grading are executed by a worker at a Redis."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.fabric.cli import URL_VARIABLES
from rocstar.train.serving import agent

from .launching import redis_server, worker


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server() as found:
        yield found


def refused(workshop: Any, directory: Path) -> str:
    ended = workshop.main(
        "train", "coin.toml", "--output-dir", str(directory), "--tool.sandbox=redis", "--sft.steps=1"
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    message: str = ended.stderr.splitlines()[-1]
    return message


def test_a_run_with_tools_on_redis(
    workshop: Any, finished: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_rows: Any
) -> None:
    monkeypatch.setenv(agent.REDIS_VARIABLE, url)
    options = [f"--model.path={finished / 'checkpoints' / 'step_0'}", "--sft.steps=0", "--stages.1.steps=0"]
    options += ["--stages.0.steps=1", "--tool.sandbox=redis", "--engine.deterministic=true"]
    with worker(url, "stdlib,verifier") as told:
        workshop.succeed("train", "coin.toml", "--output-dir", str(tmp_path / "run"), *options)
    local = [option for option in options if "redis" not in option]
    assert workshop.main("train", "coin.toml", "--output-dir", str(tmp_path / "local"), *local).returncode == 0
    ((row,), (expected,)) = (read_rows(tmp_path / name, "rl") for name in ("run", "local"))
    same = [key for key in expected if key.partition("/")[0] in ("reward", "tool", "ledger", "loss", "seq_len")]
    assert len(same) > 10 and {k: row[k] for k in same} == {k: expected[k] for k in same}
    assert row["ledger/failed"] == 0
    calls = re.search(r"(\d+) calls", told[0])
    assert calls and int(calls[1]) > 0, told
    assert not (tmp_path / "run" / "config.toml").read_text().count(url), "no URL in what is written"


def test_a_run_without_its_workers_is_refused(
    workshop: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "WORKERS_WAIT_S", 0.0)
    for name in URL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    told = refused(workshop, tmp_path / "refused")
    assert "ROCSTAR_REDIS_URL is not set" in told and not (tmp_path / "refused").exists()
    monkeypatch.setenv(agent.REDIS_VARIABLE, url)
    told = refused(workshop, tmp_path / "refused")
    assert "no worker runs stdlib, verifier" in told and "rocstar sandbox worker --flavours" in told
    with worker(url, "stdlib"):
        assert "no worker runs verifier" in refused(workshop, tmp_path / "refused")
    monkeypatch.setenv(agent.REDIS_VARIABLE, "http://nowhere")
    assert "tool.sandbox = 'redis'" in refused(workshop, tmp_path / "refused")
