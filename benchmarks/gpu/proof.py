"""The proof on a device: correctness and speed of rocstar there. It fits into fifteen minutes.

    python benchmarks/gpu/proof.py --out DIR                  with a CUDA or ROCm device
    python benchmarks/gpu/proof.py --toy --out DIR            tiny sizes on a CPU: does the proof work at all
    python benchmarks/gpu/proof.py --only head,peer --out DIR some kinds of parts, or single parts

Each part is a process with a time limit. It writes its JSON after each number, so that a part that is
killed keeps its figures, and a part that fails never stops the next. DIR/proof.json and DIR/proof.log
are written after each part, and copied to the folder of --mirror. Parts that time nothing run at once; the
others run alone. A part is left out where less than its least time remains of --budget.

proof.json: the machine, the parts with their fields (proof_parts/results.py; null where nothing was
measured), and the bars (proof_parts/bars.py), each with its figure and whether it is met.

Exit code 0: each part ended by itself, and each bar of correctness that has a figure is met. A missed bar of
speed or memory is recorded, and so is a peer that fails. 1: not so. 2: the arguments are wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu.proof_parts.bars import BARS
from gpu.proof_parts.results import RESULTS, SEED, part_file
from report import head, text_of

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment of each part: nothing is downloaded, and no tokenizer takes threads."""
LOG_BYTES = 200_000
"""Last bytes of a part's output in proof.log."""
TOY_PATIENCE = 4
"""A toy proof on a CPU that others use takes so many times a part's seconds at most."""
GRACE_S = 5.0
"""From a part's own deadline until it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A part: its kind is the first word of the name.

    Args:
        seconds: it takes at most.
        least_s: it is left out if less remains.
        runs_beside: it times nothing, and runs beside its neighbours that time nothing.
        is_peer: its failure is the peer's, and recorded only.
        in_toy: runs in a toy proof.
    """

    name: str
    seconds: float
    least_s: float = 20.0
    runs_beside: bool = False
    is_peer: bool = False
    in_toy: bool = True

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]


PLAN = (
    Planned(name="facts", seconds=60, least_s=5),
    Planned(name="parity", seconds=100, runs_beside=True),
    Planned(name="updates", seconds=90, runs_beside=True),
    Planned(name="loop", seconds=150, runs_beside=True),
    Planned(name="head", seconds=60),
    Planned(name="learner 4B", seconds=130),
    Planned(name="decode rocstar", seconds=60),
    Planned(name="decode transformers no graphs", seconds=60, is_peer=True, in_toy=False),
    Planned(name="peer Liger cross-entropy budget=8", seconds=40, is_peer=True, in_toy=False),
    Planned(name="learner 0.6B", seconds=60, in_toy=False),
    Planned(name="decode transformers", seconds=60, is_peer=True),
    Planned(name="learner 1.7B", seconds=100, in_toy=False),
    Planned(name="peer Liger cross-entropy budget=1", seconds=40, is_peer=True),
    Planned(name="decode transformers small pages", seconds=60, is_peer=True, in_toy=False),
    Planned(name="decode transformers prefill first", seconds=60, is_peer=True, in_toy=False),
    Planned(name="peer Liger per-token cross-entropy", seconds=40, is_peer=True, in_toy=False),
    Planned(name="peer chunked torch", seconds=40, is_peer=True),
    Planned(name="peer compiled chunked torch", seconds=60, is_peer=True, in_toy=False),
    Planned(name="peer compiled torch", seconds=60, is_peer=True, in_toy=False),
    Planned(name="peer naive torch", seconds=40, is_peer=True, in_toy=False),
    Planned(name="peer Liger GRPO chunk_size=1", seconds=60, is_peer=True, in_toy=False),
    Planned(name="peer Liger GRPO chunk_size=16", seconds=60, is_peer=True, in_toy=False),
    Planned(name="tests gpu", seconds=120, least_s=40, in_toy=False),
    Planned(name="tests cpu", seconds=400, least_s=60),
)
"""The most important first."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The end of a part."""

    result: dict[str, Any]
    seconds: float | None = None
    exit_code: int | None = None
    """Negative: of the signal that ended it."""
    failed: str | None = None
    left_out: str | None = None


def nothing(kind: str) -> dict[str, Any]:
    """The fields of a part that measured nothing."""
    return asdict(RESULTS[kind]())


@dataclass(slots=True)
class Child:
    """A part under way."""

    planned: Planned
    process: subprocess.Popen[bytes]
    began: float
    limit: float

    @staticmethod
    def started(planned: Planned, options: argparse.Namespace, limit: float, threads: int) -> Child:
        arguments = [f"--part={planned.name}", f"--out={options.out}", f"--seconds={limit - GRACE_S:.1f}"]
        with part_file(options.out, planned.name, ".log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-u", __file__, *arguments, *(["--toy"] if options.toy else [])],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads)},
            )  # fmt: skip
        return Child(planned, process, time.monotonic(), limit)

    def is_over(self) -> bool:
        """Whether it ended; it is killed when its time is up, with all that it left running."""
        if self.process.poll() is None and time.monotonic() - self.began < self.limit:
            return False
        self.kill()
        return True

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def outcome(self, out: Path) -> Outcome:
        file, log = (part_file(out, self.planned.name, suffix) for suffix in (".json", ".log"))
        result = json.loads(file.read_text()) if file.exists() else nothing(self.planned.kind)
        seconds, code = round(time.monotonic() - self.began, 1), self.process.returncode
        failed = None
        if code == -signal.SIGKILL and seconds >= self.limit:
            failed = f"killed after {self.limit:.0f} s"
        elif code:
            lines = log.read_text(errors="replace").strip().splitlines()
            failed = lines[-1][:400] if lines else f"exit code {code}"
        return Outcome(result=result, seconds=seconds, exit_code=code, failed=failed)


@dataclass(slots=True)
class Proof:
    """The outcomes so far, and their files.

    Args:
        about: the machine and the command.
        outcomes: of each part in PLAN.
    """

    options: argparse.Namespace
    about: dict[str, Any]
    outcomes: dict[str, Outcome]

    def record(self, planned: Planned, outcome: Outcome) -> None:
        """Write proof.json and proof.log with this part's outcome."""
        self.outcomes[planned.name] = outcome
        out: Path = self.options.out
        said = f"{planned.name}: {outcome.failed or outcome.left_out or 'done'}"
        with (out / "proof.log").open("a") as log:
            print(f"\n== {said}, {outcome.seconds} s", file=log)
            for suffix in (".log", ".txt"):
                path = part_file(out, planned.name, suffix)
                if outcome.seconds is not None and path.exists():
                    log.write(path.read_text(errors="replace")[-LOG_BYTES:])
        self.write()
        print(f"{said}, {outcome.seconds} s", flush=True)

    def write(self) -> None:
        device = self.outcomes["facts"].result["device"]
        parts = {name: asdict(outcome) for name, outcome in self.outcomes.items()}
        bars = self.bars()
        claims = [claim_of(bar) for bar in bars if bar["figure"] is not None]
        whole = {**self.about, "claims": claims, "device": device, "bars": bars, "parts": parts}
        out, mirror = self.options.out, self.options.mirror
        (out / "proof.json").write_text(text_of(whole))
        if mirror:
            for name in ("proof.json", "proof.log"):
                shutil.copyfile(out / name, mirror / name)

    def bars(self) -> list[dict[str, Any]]:
        results = {name: outcome.result for name, outcome in self.outcomes.items()}
        return [bar.judged(results, toy=self.options.toy) for bar in BARS]

    def exit_code(self) -> int:
        """As the head of this file says."""
        failed = any(self.outcomes[planned.name].failed and not planned.is_peer for planned in PLAN)
        return int(failed or any(bar["is_correctness"] and bar["met"] is False for bar in self.bars()))

    def show_bars(self) -> None:
        for bar in self.bars():
            met = {True: "met", False: "MISSED", None: "-"}[bar["met"]]
            print(f"{met:<7} {bar['name']}: {bar['figure']} (wanted {wanted(bar)})")


def wanted(bar: Mapping[str, Any]) -> str:
    limits = ((">=", bar["at_least"]), ("<=", bar["at_most"]))
    return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)


def claim_of(bar: Mapping[str, Any]) -> dict[str, Any]:
    """A bar with a figure, as report.claim writes it."""
    return {
        "claim": f"on the device: {bar['name']}",
        "value": bar["figure"],
        "unit": None,
        "bar": wanted(bar),
        "met": bar["met"],
    }


def about(options: argparse.Namespace) -> dict[str, Any]:
    """The head of proof.json."""
    return {
        **head("gpu_proof", seeds=[SEED], commit=options.commit),
        "toy": options.toy,
        "began_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "budget_s": options.budget,
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def drive(options: argparse.Namespace, plan: Sequence[Planned]) -> int:
    """Run the parts in order, each alone or beside others that time nothing."""
    end = time.monotonic() + options.budget
    outcomes = {
        planned.name: Outcome(
            result=nothing(planned.kind), left_out="not begun" if planned in plan else "not selected"
        )
        for planned in PLAN
    }
    proof = Proof(options, about(options), outcomes)
    cpus = os.cpu_count() or 2
    together = 2 if options.toy else 3
    running: list[Child] = []
    todo = list(plan)
    try:
        while todo or running:
            while todo and may_begin(todo[0], running, together, options.toy):
                planned, left = todo.pop(0), end - time.monotonic()
                if left < planned.least_s:
                    reason = f"{left:.0f} s left, needs {planned.least_s:.0f}"
                    proof.record(planned, Outcome(result=nothing(planned.kind), left_out=reason))
                    continue
                shared = together if planned.runs_beside or options.toy else 1
                threads = max(1, cpus // shared)
                limit = min(planned.seconds * (TOY_PATIENCE if options.toy else 1), left)
                running.append(Child.started(planned, options, limit, threads))
            for child in [child for child in running if child.is_over()]:
                running.remove(child)
                proof.record(child.planned, child.outcome(options.out))
            time.sleep(0.1)
    finally:
        for child in running:
            child.kill()
            proof.record(child.planned, child.outcome(options.out))
    proof.show_bars()
    return proof.exit_code()


def has_device() -> bool:
    """Whether torch sees a CUDA or ROCm device; asked in a process of its own, which holds nothing of it."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def may_begin(planned: Planned, running: Sequence[Child], together: int, toy: bool) -> bool:
    """Whether what runs now may run beside this part."""
    if not running:
        return True
    beside = toy or (planned.runs_beside and all(child.planned.runs_beside for child in running))
    return beside and len(running) < together


def run_part(options: argparse.Namespace) -> int:
    """One part, in this process."""
    from gpu.proof_parts.part import Part

    kind = options.part.partition(" ")[0]
    module = importlib.import_module(f"gpu.proof_parts.{kind}")
    deadline = time.monotonic() + options.seconds
    part = Part(name=options.part, toy=options.toy, out=options.out, deadline=deadline, result=RESULTS[kind]())
    part.save()
    module.measure(part)
    return 0


def selected(options: argparse.Namespace) -> list[Planned]:
    """The parts that --only, --skip and --toy leave. ValueError: an unknown name."""
    known = {name for planned in PLAN for name in (planned.name, planned.kind)}
    only, skip = ({name for name in text.split(",") if name} for text in (options.only, options.skip))
    if unknown := (only | skip) - known:
        raise ValueError(f"no such part: {', '.join(sorted(unknown))}; parts: {', '.join(sorted(known))}")
    return [
        planned
        for planned in PLAN
        if (not only or {planned.name, planned.kind} & only)
        and not {planned.name, planned.kind} & skip
        and (planned.in_toy or not options.toy)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--mirror", type=Path, help="folder that proof.json and proof.log are copied to")
    parser.add_argument("--budget", type=float, default=840, help="seconds in all")
    parser.add_argument("--only", default="", help="kinds or names of parts, joined by commas")
    parser.add_argument("--skip", default="", help="kinds or names of parts, joined by commas")
    parser.add_argument("--toy", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--commit", default="", help="of a tree that is no checkout; `-dirty` at its end")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=100.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out = options.out.absolute()
    if options.part:
        return run_part(options)
    try:
        plan = selected(options)
    except ValueError as error:
        parser.error(str(error))
    if not options.toy and not has_device():
        parser.error("torch sees no CUDA or ROCm device here; --toy runs the proof on a CPU")
    (options.out / "parts").mkdir(parents=True, exist_ok=True)
    for old in [*(options.out / "parts").glob("*.json"), options.out / "proof.log"]:
        old.unlink(missing_ok=True)
    if options.mirror:
        options.mirror.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return drive(options, plan)


if __name__ == "__main__":
    sys.exit(main())
