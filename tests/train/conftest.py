"""A synthetic run directory for the tests of what reads one."""

import json
import math
import random
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.record.metrics import MetricsWriter

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'</pre></summary>"


def rl_metrics(i: int, num_steps: int, rng: random.Random) -> dict[str, float]:
    """Plausible metrics of step `i`: a rising reward, falling tool errors."""
    rise = 1 / (1 + math.exp(-6 * (i / num_steps - 0.35)))
    generate, learn = rng.uniform(1.5, 2.1), rng.uniform(0.7, 0.9)
    times = {"generate": generate, "tool_wait": 0.16, "reward": 0.08, "learn": learn, "publish": 0.02}
    times |= {"checkpoint": 0.9 if i % 20 == 0 else 0.0, "eval": 0.0, "other": 0.05}
    no_signal = round(16 * abs(rise - 0.5) * 2) * 4
    kept = (64 - no_signal) // 2
    return {
        "reward/mean": min(1.0, max(0.0, 0.27 + 0.68 * rise + rng.gauss(0, 0.05))),
        "tool/error_share_in_correct": max(0.0, 0.19 - 0.15 * rise + rng.gauss(0, 0.02)),
        "tool/error_share": max(0.0, 0.33 - 0.28 * rise + rng.gauss(0, 0.02)),
        "tool/calls_mean": 1.35 - 0.3 * rise,
        "num_turns/mean": 2.3 - 0.3 * rise + rng.gauss(0, 0.04),
        "seq_len/mean": 160 - 25 * rise + rng.gauss(0, 4),
        "seq_len/max": 310.0 - 20 * rise + rng.gauss(0, 20),
        "is_truncated/mean": max(0.0, 0.11 - 0.11 * rise + rng.gauss(0, 0.01)),
        "entropy/mean": 0.42 - 0.27 * rise + rng.gauss(0, 0.012),
        "optim/grad_norm": math.nan if i == 3 else 0.9 - 0.4 * rise + rng.gauss(0, 0.08),
        "clip/low_fraction": 0.0,
        "clip/high_fraction": 0.0,
        "ledger/generated": 64.0,
        "ledger/kept": float(kept),
        "ledger/dropped_positive": float((64 - no_signal - kept) // 2),
        "ledger/dropped_negative": float(64 - no_signal - kept - (64 - no_signal - kept) // 2),
        "ledger/no_signal": float(no_signal),
        "ledger/failed": 0.0,
        "tokens/generated": 6100.0,
        **{f"time/{name}": seconds for name, seconds in times.items()},
        "time/step": math.fsum(times.values()),
    }


def make_evaluation(value: float, *, set_name: str = "heldout") -> dict[str, float]:
    return {
        f"eval/{set_name}/avg@4": value,
        f"eval/{set_name}/ci_low": max(0.0, value - 0.08),
        f"eval/{set_name}/ci_high": min(1.0, value + 0.06),
        f"eval/{set_name}/num_tasks": 64.0,
    }


def make_record(
    step: int,
    sibling: int,
    *,
    reason: str = "kept",
    reward: float | None = 1.0,
    text: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A trajectory record v1 with one failing call, one good call and an answer."""
    code = "from math import gcd\nprint(gcd(84, 36) * undefined)"
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "..."}}\n</tool_call>'
    error = "NameError: name 'undefined' is not defined"
    outcome: dict[str, Any] = {"reward": reward, "method": "strict"}
    if reward is None:
        outcome = {"failed": {"kind": "sandbox_lost", "retryable": True, "detail": "supervisor died"}}
    answer = text if text is not None else "It is <answer>\\boxed{12}</answer>"
    return {
        "v": 1, "id": f"s{step}/t{sibling}/{sibling}", "step": step, "stage": "rl-1",
        "task": {"id": f"gcd-{sibling}", "source": "gcd",
                 "question": "What is the gcd of 84 and 36?", "answer": "12"},
        "sibling": sibling, "policy_version": step, "ids": [1, 2, 3], "logprobs": [None, -0.5, -0.25],
        "segments": [{"start": 0, "end": 1, "origin": "prompt", "text": "<|im_start|>user"},
                     {"start": 1, "end": 3, "origin": "policy", "text": answer}],
        "version_spans": [[1, 3, step]],
        "turns": [
            {"text": f"I compute it.\n{call}", "finish": "stop", "calls": [
                {"name": "python", "arguments": {"code": code}, "malformed": None, "status": "error",
                 "is_error": True, "result": error}]},
            {"text": f"Once more.\n{call}", "finish": "stop", "calls": [
                {"name": "python", "arguments": {"code": "print(12)"}, "malformed": None, "status": "ok",
                 "is_error": False, "result": "12\n"}]},
            {"text": answer, "finish": "stop", "calls": []},
        ],
        "finish_reason": "answered", "outcome": outcome,
        "penalty": None if reward is None else {"error": 0.5, "format": 0.0},
        "decision": {"kept": reason == "kept", "reason": reason},
        "advantage": 0.87 if reason == "kept" else None, "seed": [1, step, sibling], "num_answers": 1,
    } | changes  # fmt: skip


def make_run(run_dir: Path, *, num_steps: int = 60) -> Path:
    """A whole run directory as `rocstar train` leaves it."""
    rng = random.Random(7)
    (run_dir / "trajectories").mkdir(parents=True)
    (run_dir / "config.toml").write_text('[model]\nname = "tiny <b>bold</b>"\n')
    now = [0.0]
    with MetricsWriter(run_dir / "metrics.jsonl", clock=lambda: now[0]) as writer:
        for i in range(0, 121, 5):
            now[0] += 1.2
            writer.write(
                {"loss/sft": 0.35 + 3.2 * math.exp(-i / 22) + rng.gauss(0, 0.04)}, step=i, stage="sft", phase="sft"
            )
        writer.write(make_evaluation(0.29) | make_evaluation(0.21, set_name="easy"), step=0, stage="sft", phase="eval")
        for i in range(1, num_steps + 1):
            metrics = rl_metrics(i, num_steps, rng)
            now[0] += metrics["time/step"]
            stage = "rl-1" if i <= num_steps // 2 else "rl-2"
            writer.write(metrics, step=i, stage=stage, phase="rl")
        final = make_evaluation(0.95) | make_evaluation(0.88, set_name="easy")
        writer.write(final, step=num_steps, stage="rl-2", phase="eval")
    for step in (1, 2, num_steps):
        lines = [
            make_record(step, 0),
            make_record(step, 1, reason="dropped_positive"),
            make_record(step, 2, reward=0.0, text="It is <answer>\\boxed{7}</answer>", advantage=-1.15),
            make_record(step, 3, reason="dropped_negative", reward=0.0, finish_reason="max_tokens"),
            make_record(step, 4, reason="no_signal"),
            make_record(step, 5, reason="failed", reward=None),
            make_record(step, 6, text=ATTACK),
        ]
        path = run_dir / "trajectories" / f"step_{step}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir


class Tags(HTMLParser):
    """The elements of a page, and an error for a tag that does not close what is open."""

    VOID = ("meta", "img", "br", "hr", "input", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(str(text))  # what escapes by itself would escape what the parser makes of it
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory as `rocstar train` leaves it; a test must not change it."""
    return make_run(tmp_path_factory.mktemp("runs") / "quickstart")


@pytest.fixture(scope="session")
def attack() -> str:
    """What a page must show without running it."""
    return ATTACK


@pytest.fixture(scope="session")
def record() -> Callable[..., dict[str, Any]]:
    """Makes a trajectory record: see `make_record`."""
    return make_record


@pytest.fixture(scope="session")
def evaluation() -> Callable[..., dict[str, float]]:
    """Makes the metrics of an evaluation: see `make_evaluation`."""
    return make_evaluation


@pytest.fixture(scope="session")
def tags_of() -> type[Tags]:
    """Parses a page: see `Tags`."""
    return Tags
