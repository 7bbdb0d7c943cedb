"""`rocstar train` on two nodes with the real SGLang: two torchruns of this machine, a server each."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rocstar.engine.record.json_record import from_record
from rocstar.engine.types import Scored
from tests.fakes.json_lines import read_folder
from tests.fakes.sglang.exchanges import CPU_ARGS

from ..integration.launching import ended, start_nodes

ROOT = Path(__file__).parents[2]
STEPS = 2


def test_two_nodes_serve_each_version(python: Path, policy: Path, figures: Callable[..., None]) -> None:
    directory = ROOT / "runs" / "test-sglang" / "train_two_nodes"
    shutil.rmtree(directory, ignore_errors=True)
    args = {**CPU_ARGS, "max-total-tokens": 8192}
    begun = time.monotonic()
    launchers = start_nodes(
        SimpleNamespace(directory=ROOT, environment=lambda: dict(os.environ)),
        *(str(ROOT / "recipes" / "quickstart.toml"), "--output-dir", str(directory)),
        *(f"--model.path={policy}", "--sft.steps=0", "--eval.data.limit=2", "--eval.samples_per_task=2"),
        *("--rl.tasks_per_step=4", "--rl.rollouts_per_task=8", "--rl.group_size=4", "--rl.max_staleness=0"),
        *(f"--stages.0.steps={STEPS}", "--engine.deterministic=false", "--engine.kind=sglang"),
        *(f"--engine.args.{k}={json.dumps(v)}" for k, v in args.items()),
        ROCSTAR_SGLANG_PYTHON=str(python),
        OMP_NUM_THREADS="1",
        SGLANG_CPU_OMP_THREADS_BIND="0",
    )
    for code, errors in ended(launchers):
        assert code == 0, errors
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["phase"] == "rl"]
    found = [from_record(r) for r in read_folder(directory / "trajectories")]
    figures(
        "train_two_nodes",
        wall_s=round(time.monotonic() - begun, 1),
        steps_s=[round(row["time/step"], 2) for row in rows],
        publish_s=[round(row["time/publish"], 3) for row in rows],
        mismatch_kl=[row.get("mismatch_kl/mean") for row in rows],
        groups_elsewhere=[row["nodes/groups/1"] for row in rows],
        trajectories=len(found),
        tool_calls=sum(len(t.results) for t in found),
    )
    assert len(found) == STEPS * 4 * 8 and all(isinstance(t.outcome, Scored) for t in found)
    assert rows[-1]["policy/version"] == STEPS, "every step learned and published"
    for row in rows:
        assert row["nodes/up"] == 2 and row["nodes/groups/1"] >= 1 and row["nodes/regranted"] == 0
        # In turns every token is of the learner's weights, on whichever node it was made.
        assert row["policy/staleness_max"] == 0 and abs(row["mismatch_kl/mean"]) < 1e-4
        assert row["mismatch_ratio/p99"] < 1.001
