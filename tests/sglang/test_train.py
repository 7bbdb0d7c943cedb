"""`rocstar train` with the real SGLang as its engine: two steps of the quickstart's tiny Qwen3."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.json_record import from_record
from rocstar.engine.types import Scored
from tests.fakes.json_lines import read_folder
from tests.fakes.sglang.exchanges import CPU_ARGS

ROOT = Path(__file__).parents[2]
STEPS = 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("disk", ["--engine.publish=disk"]),
        ("broadcast", ["--engine.publish=broadcast"]),
        ("restart", ["--engine.placement=restart"]),
    ],
)
def test_two_steps(
    command: Callable[..., None],
    python: Path,
    policy: Path,
    name: str,
    options: list[str],
    figures: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", str(python))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0")
    directory = ROOT / "runs" / "test-sglang" / f"train_{name}"
    shutil.rmtree(directory, ignore_errors=True)
    args = {**CPU_ARGS, "max-total-tokens": 8192}
    started = time.monotonic()
    command(
        *("train", str(ROOT / "recipes" / "quickstart.toml"), "--output-dir", str(directory)),
        *(f"--model.path={policy}", "--sft.steps=0", "--eval.data.limit=2", "--eval.samples_per_task=2"),
        *("--rl.tasks_per_step=4", "--rl.rollouts_per_task=8", "--rl.group_size=4", "--rl.max_staleness=1"),
        *(f"--stages.0.steps={STEPS}", "--engine.deterministic=false", "--engine.kind=sglang"),
        *(f"--engine.args.{k}={json.dumps(v)}" for k, v in args.items()),
        *options,
    )
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["phase"] == "rl"]
    found = [from_record(r) for r in read_folder(directory / "trajectories")]
    figures(
        f"train_{name}",
        wall_s=round(time.monotonic() - started, 1),
        steps_s=[round(row["time/step"], 2) for row in rows],
        publish_s=[round(row["time/publish"], 3) for row in rows],
        mismatch_kl=[row.get("mismatch_kl/mean") for row in rows],
        mismatch_ratio_p99=[row.get("mismatch_ratio/p99") for row in rows],
        staleness=[row["policy/staleness_max"] for row in rows],
        versions=[row["policy/version"] for row in rows],
        rewards=[row["reward/mean"] for row in rows],
        tool_calls=sum(len(t.results) for t in found),
        trajectories=len(found),
    )
    assert len(found) == STEPS * 4 * 8 and all(isinstance(t.outcome, Scored) for t in found)
    assert rows[-1]["policy/version"] == STEPS, "every step learned and published"
    assert [row["engine/publishes_failed"] for row in rows] == [0.0] * STEPS
    # Of the first step's tokens all are of the weights that the learner began with.
    assert rows[0]["policy/staleness_max"] == 0 and abs(rows[0]["mismatch_kl/mean"]) < 1e-4
    assert rows[0]["mismatch_ratio/p99"] < 1.001
    assert max(row["policy/staleness_max"] for row in rows) <= 1
