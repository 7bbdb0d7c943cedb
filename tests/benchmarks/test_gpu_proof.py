"""The proof on a device, without one: its fields, its bars, and parts that fail."""

import itertools
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from ..warm_python import warm

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import results_page  # noqa: E402
from gpu import proof, ways  # noqa: E402
from gpu.proof_parts import bars, parity, results  # noqa: E402
from gpu.proof_parts.part import Part  # noqa: E402

from rocstar.kernels import torch_ops  # noqa: E402
from rocstar.kernels.row_loss import RowLoss  # noqa: E402

FIELDS = Path(__file__).with_name("gpu_proof_fields.txt")


def field_names(of: type, prefix: str) -> list[str]:
    """`head.chunks[].ms` and the like, of a class of results."""
    names = []
    for one in fields(of):
        name, hint = f"{prefix}.{one.name}", get_type_hints(of)[one.name]
        inner = [arg for arg in get_args(hint) if is_dataclass(arg)]
        names += field_names(inner[0], f"{name}[]") if inner else [name]
    return names


def test_fields_are_those_of_the_committed_list() -> None:
    """Readers of a proof.json rely on them: a change of the list is on purpose."""
    found = [name for kind, of in results.RESULTS.items() for name in field_names(of, kind)]
    assert found == FIELDS.read_text().split()


def names_in(value: Any, prefix: str) -> set[str]:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {name for item in value for name in names_in(item, f"{prefix}[]")}
    if isinstance(value, dict) and not prefix.endswith(".versions"):
        return {name for key, item in value.items() for name in names_in(item, f"{prefix}.{key}")}
    return {prefix}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(warm().executable), str(ROOT / "benchmarks" / "gpu" / "proof.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_toy_proof_of_the_head_writes_every_part(tmp_path: Path) -> None:
    done = run("--toy", "--only=head", f"--out={tmp_path / 'out'}", f"--mirror={tmp_path / 'mirror'}")
    assert done.returncode == 0, done.stdout + done.stderr
    proved = json.loads((tmp_path / "mirror" / "proof.json").read_text())
    assert (tmp_path / "mirror" / "proof.log").read_text().startswith("\n== head: done")
    assert [*proved["parts"]] == [planned.name for planned in proof.PLAN]
    known = set(FIELDS.read_text().split())
    for name, part in proved["parts"].items():
        kind = name.partition(" ")[0]
        empty = {f"{kind}.{key}" for key, value in part["result"].items() if value == []}
        assert names_in(part["result"], kind) - empty <= known, name
        assert part["left_out"] == (None if name == "head" else "not selected")
    assert proved["parts"]["head"]["result"]["share_of_product_rate"] > 0
    assert [bar["name"] for bar in proved["bars"]] == [bar.name for bar in bars.BARS]
    assert all(bar["met"] is None for bar in proved["bars"]), "speed is judged in a toy proof"
    assert {"device", "cpus", "began_utc"} <= proved.keys()
    assert results_page.problems({"proof": {**proved, "is_dirty": False}}) == []


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    done = run("--toy", "--only=heads", f"--out={tmp_path}")
    assert done.returncode == 2 and "no such part: heads" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_refuses(tmp_path: Path) -> None:
    done = run(f"--out={tmp_path}")
    assert done.returncode == 2 and "--toy" in done.stderr and "Traceback" not in done.stderr


def child_of(code: str, planned: proof.Planned, out: Path, limit: float = 60.0) -> proof.Child:
    (out / "parts").mkdir(exist_ok=True)
    with results.part_file(out, planned.name, ".log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=log, stderr=log, start_new_session=True)
    return proof.Child(planned, process, proof.time.monotonic(), limit)


HEAD = next(planned for planned in proof.PLAN if planned.name == "head")


def test_a_part_that_fails_keeps_its_figures(tmp_path: Path) -> None:
    child = child_of("raise ValueError('no such shape')", HEAD, tmp_path)
    results.part_file(tmp_path, "head", ".json").write_text('{"ms": 3.5}')
    child.process.wait()
    assert child.is_over()
    outcome = child.outcome(tmp_path)
    assert outcome.failed == "ValueError: no such shape" and outcome.result == {"ms": 3.5}


def test_a_part_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    child = child_of("import signal; signal.pause()", HEAD, tmp_path, limit=0.0)
    assert child.is_over()
    outcome = child.outcome(tmp_path)
    assert outcome.failed == "killed after 0 s" and outcome.result == proof.nothing("head")


def proof_of(out: Path, **outcomes: proof.Outcome) -> proof.Proof:
    options = proof.argparse.Namespace(out=out, mirror=None, toy=False)
    every = {planned.name: proof.Outcome(result=proof.nothing(planned.kind)) for planned in proof.PLAN}
    return proof.Proof(options, {}, every | outcomes)


def outcome_of(kind: str, failed: str | None = None, **figures: Any) -> proof.Outcome:
    return proof.Outcome(result=proof.nothing(kind) | figures, failed=failed)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({}, 0),
        ({"head": outcome_of("head", share_of_product_rate=0.5)}, 0),  # a missed speed is recorded
        ({"head": outcome_of("head", failed="killed after 60 s")}, 1),
        ({"peer naive torch": outcome_of("peer", failed="exit code 1")}, 0),
        ({"parity": outcome_of("parity", row_failures=["config torch: off"])}, 1),
        ({"parity": outcome_of("parity", differing_runs=1)}, 1),
        ({"updates": outcome_of("updates", float32_weights_apart=0.1)}, 1),
    ],
)
def test_exit_code(tmp_path: Path, outcomes: dict[str, proof.Outcome], code: int) -> None:
    assert proof_of(tmp_path, **outcomes).exit_code() == code


def test_bars_take_their_figures_from_the_parts(tmp_path: Path) -> None:
    found = proof_of(
        tmp_path,
        **{
            "head": outcome_of("head", ms=100.0, share_of_product_rate=0.9),
            "peer naive torch": outcome_of("peer", ms=300.0),
            "peer chunked torch": outcome_of("peer", ms=90.0),
            "decode rocstar": outcome_of("decode", tokens_per_s=30.0, logprob_error=0.05, dtype="bfloat16"),
            "decode transformers": outcome_of("decode", tokens_per_s=10.0),
            "decode transformers no graphs": outcome_of("decode", tokens_per_s=20.0),
            "learner 4B": outcome_of("learner", best_mfu=0.3, measured_over_rehearsed=[0.95, 1.2]),
        },
    ).bars()
    judged = {bar["name"]: (bar["figure"], bar["met"]) for bar in found if bar["figure"] is not None}
    assert judged == {
        "head 14B: share of the product rate": (0.9, True),
        "head 14B: time of the best peer over rocstar's": (0.9, False),
        "decode: log-prob error over its tolerance": (0.5, True),
        "decode 0.6B: tokens per second over transformers' best setting": (1.5, True),
        "learner 4B: share of the bfloat16 rate": (0.3, False),
        "learner 4B: least measured over rehearsed memory": (0.95, True),
        "learner 4B: most measured over rehearsed memory": (1.2, False),
    }


def planted_row_loss_(kind: str) -> parity.RowLossOp:
    calls = itertools.count(1)

    def row_loss_(logits_NV: torch.Tensor, *given: Any, grad: bool, **named: Any) -> RowLoss:
        found = torch_ops.row_loss_(logits_NV, *given, grad=grad, **named)
        if kind == "wrong" and grad:
            logits_NV *= 1.01
        if kind == "race" and grad:
            logits_NV[0, 0] += next(calls)
        return found

    return row_loss_


def toy_part(out: Path) -> Part:
    (out / "parts").mkdir()
    return Part(name="parity", toy=True, out=out, deadline=0.0, result=results.Parity())


def test_a_wrong_kernel_is_noticed(tmp_path: Path) -> None:
    part = toy_part(tmp_path)
    parity.check_rows(part, {"planted": planted_row_loss_("wrong")})
    assert part.result.row_failures[0].startswith("config planted: gradient is off")


@pytest.mark.parametrize(("kind", "differing"), [("right", 0), ("race", 3)])
def test_a_race_is_seen(tmp_path: Path, kind: str, differing: int) -> None:
    once = parity.repeated(toy_part(tmp_path), {kind: planted_row_loss_(kind)})[f"row kernels {kind}"]
    assert parity.differing(once, 3) == differing


def test_every_peer_has_a_part() -> None:
    planned = {one.name.removeprefix("peer ") for one in proof.PLAN if one.kind == "peer"}
    assert planned == {peer.name for peer in ways.peers(on_gpu=False)}
