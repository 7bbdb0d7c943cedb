"""An engine whose log-probs are off pauses the optimizer of a real run; its rollouts go on."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rocstar.engine.record.reading import read_records
from rocstar.train import loop
from rocstar.train.learner.batch import MicroBatch
from rocstar.train.record.run_directory import records_file

OFFSET = 0.2
"""Nats by which the engine reports its tokens as likelier than they are."""


@pytest.fixture
def wrong_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.pack_updates

    def shifted(*arguments: Any, **options: Any) -> list[list[MicroBatch]]:
        return [
            [dataclasses.replace(m, rollout_logprobs_T=m.rollout_logprobs_T + OFFSET) for m in micros]
            for micros in real(*arguments, **options)
        ]

    monkeypatch.setattr(loop, "pack_updates", shifted)


def test_a_wrong_engine_pauses_the_optimizer_and_not_the_rollouts(
    workshop: Any, finished: Path, wrong_engine: None, read_rows: Callable[..., list[dict[str, Any]]]
) -> None:
    directory = workshop.directory / "gated"
    options = ["--sft.steps=0", "--stages.0.steps=4", "--stages.1.steps=0", "--checkpoint.keep_last=9"]
    model = f"--model.path={finished / 'checkpoints' / 'step_0'}"
    ended = workshop.succeed(
        "train", "coin.toml", "--output-dir", str(directory), model, "--off_policy.gate_steps=2", *options
    )
    rows = read_rows(directory, "rl")
    measured = [row for row in rows if "gate/paused" in row]
    assert len(measured) >= 3, "a step without a signal measures nothing"
    assert [row["gate/paused"] for row in measured] == [0.0] + [1.0] * (len(measured) - 1)
    assert [row["gate/bad_steps"] for row in measured] == list(range(1, len(measured) + 1))
    for row in measured:
        assert row["mismatch_kl/mean"] == pytest.approx(OFFSET, abs=1e-3)
        assert ("loss/policy" in row) == (row["gate/paused"] == 0)
    assert all(row["ledger/generated"] == 16 for row in rows), "rollouts go on"
    first = int(measured[0]["step"])
    weights = [load_file(directory / f"checkpoints/step_{k}/model.safetensors") for k in (first - 1, first, 4)]
    same = [all(b.equal(a[n]) for n, b in weights[1].items()) for a in (weights[0], weights[2])]
    assert same == [False, True], "the first step learned, the paused ones did not"
    paused = [int(row["step"]) for row in measured[1:]]
    dumps = sorted(path.name for path in (directory / "off_policy").iterdir())
    assert dumps == [f"step_{step:06d}.json" for step in paused]
    dumped = json.loads((directory / "off_policy" / dumps[0]).read_text())
    worst = dumped["worst"]
    assert dumped["bounds"] == {"kl": 0.05, "ratio_p99": 2.0, "steps": 2}
    assert len(worst) == 20 and all(token["text"] for token in worst)
    path = records_file(directory, paused[0])
    records = {record["id"]: record for record in read_records(path)}
    for token in worst:
        record = records[token["trajectory"]]
        assert record["ids"][token["position"]] == token["token"]
        assert record["logprobs"][token["position"]] == pytest.approx(token["rollout_logprob"] - OFFSET, abs=1e-5)
        tool_ends = [s["end"] for s in record["segments"] if s["origin"] == "tool"]
        assert token["after_tool"] == any(end <= token["position"] for end in tool_ends)
    assert f"step {paused[0]}: optimizer paused" in ended.stderr
