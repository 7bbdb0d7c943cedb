"""Do real programs print what they are recorded to print? Runs those of a JSONL file that are recorded `ok`.

    python benchmarks/llm_programs.py DATA                      through a SandboxPool
    python benchmarks/llm_programs.py DATA --serve              through HTTP batches of a service it starts
    python benchmarks/llm_programs.py DATA --url 127.0.0.1:8088 through one that runs

Fields of a row: id, code, expected_output, status. Output is compared without white space. Every program
that differs is listed with the reason: `--plain` also runs those with this Python alone, unsandboxed, to
tell the recording's fault (another version of numpy or sympy made it) from the sandbox's. Exit status 1 says
that fewer than 98 % agree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uvloop
from sandbox_bench.http_client import Client
from sandbox_bench.programs import Program, load_real, squeeze
from sandbox_bench.rocstar_service import service

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

BAR = 0.98
BATCH = 64
IN_FLIGHT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program printed and how it ended (a status, or the kind of the sandbox's own failure)."""

    status: str
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A program whose output is not the recorded one. ours: nothing but the sandbox explains it yet."""

    name: str
    reason: str
    ours: bool
    expected: str
    outcome: Outcome


def flavours() -> tuple[str, ...]:
    return ("stdlib", "numeric", "scientific") if find_spec("scipy") else ("stdlib", "numeric")


async def run_in_pool(programs: Sequence[Program], wall_s: float) -> list[Outcome]:
    requests = [
        ExecRequest(code=program.code, flavour="auto", limits=_limits(wall_s), seed=0) for program in programs
    ]
    outcomes = [Outcome(status="none")] * len(programs)
    async with SandboxPool(flavours()) as pool:
        async for index, result in pool.run_batch(requests):
            if isinstance(result, ExecResult):
                outcomes[index] = _outcome(result.to_json())
            else:
                outcomes[index] = Outcome(status=result.kind, stderr=str(result))
    return outcomes


async def run_through_http(programs: Sequence[Program], wall_s: float, address: str) -> list[Outcome]:
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    batches = [list(programs[at : at + BATCH]) for at in range(0, len(programs), BATCH)]
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def post(client: Client, batch: list[Program]) -> list[Outcome]:
        limits = {"wall_s": wall_s, "cpu_s": math.ceil(wall_s)}
        body = {"requests": [{"code": program.code, "limits": limits, "seed": 0} for program in batch]}
        async with slots:
            answer = await client.post("/v1/batch", body)
        if answer.status != 200:
            raise ValueError(f"{address} answered {answer.status}: {answer.body[:300]!r}")
        return [_outcome(result) for result in answer.json()["results"]]

    async with Client(host, int(port or 80)) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(post(client, batch)) for batch in batches]
    return [outcome for task in tasks for outcome in task.result()]


def _limits(wall_s: float) -> Limits:
    return Limits(wall_s=wall_s, cpu_s=math.ceil(wall_s))


def _outcome(fields: dict[str, Any]) -> Outcome:
    if "status" not in fields:
        return Outcome(status="refused", stderr=json.dumps(fields))
    return Outcome(status=fields["status"], stdout=fields["stdout"], stderr=fields["stderr"])


def agrees(program: Program, outcome: Outcome) -> bool:
    return outcome.status == "ok" and program.right(outcome.stdout)


def difference(program: Program, outcome: Outcome, plain: Outcome | None) -> Difference | None:
    """None when the program printed what is recorded. `plain` is how it ended without a sandbox."""
    if agrees(program, outcome):
        return None
    reason, ours = explain(program.expected, outcome), False
    if reason is None and plain is not None and not agrees(program, plain):
        reason = f"this Python without a sandbox does not print it either ({plain.status})"
    if reason is None:
        reason, ours = outcome.status, True
    return Difference(name=program.name, reason=reason, ours=ours, expected=program.expected, outcome=outcome)


_NUMPY_SCALAR = re.compile(r"np\.\w+\(([^()]*)\)")
_NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")


def explain(expected: str, outcome: Outcome) -> str | None:
    """The harmless reason for another output, None when there is none that can be seen in it."""
    if outcome.status != "ok":
        return None
    old, new = squeeze(expected), squeeze(outcome.stdout)
    plainly = _NUMPY_SCALAR.sub(r"\1", new)
    if plainly == old:
        return "numpy 2 shows the type of a scalar"
    if _differ_in_last_digits(old, plainly):
        return "the last digits of a float"
    if "{" in old and Counter(old) == Counter(new):
        return "the order of a set"
    return None


def _differ_in_last_digits(old: str, new: str) -> bool:
    numbers = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=False)
    return _NUMBER.sub("#", old) == _NUMBER.sub("#", new) and all(
        math.isclose(float(a), float(b), rel_tol=1e-9) for a, b in numbers
    )


def run_plainly(program: Program, wall_s: float) -> Outcome:
    """The program in a Python of its own, with no sandbox around it."""
    env = {"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0", "MPLBACKEND": "agg"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                [sys.executable, "-c", program.code],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=wall_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(status="timeout")
    status = "ok" if ended.returncode == 0 else "error"
    return Outcome(status=status, stdout=ended.stdout, stderr=ended.stderr)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    programs = load_real(options.data, options.limit)
    async with AsyncExitStack() as stack:
        address = options.url
        if options.serve:
            address = f"127.0.0.1:{stack.enter_context(service('--flavours', ','.join(flavours()))).port}"
        if address is None:
            outcomes = await run_in_pool(programs, options.wall_s)
        else:
            outcomes = await run_through_http(programs, options.wall_s, address)
    differences = [d async for d in _differences(programs, outcomes, options)]
    return {
        "programs": len(programs),
        "agree": len(programs) - len(differences),
        "share": (len(programs) - len(differences)) / len(programs),
        "through": "pool" if address is None else "http",
        "reasons": Counter(each.reason for each in differences),
        "ours": sum(each.ours for each in differences),
        "differences": [
            {
                "id": each.name,
                "reason": each.reason,
                "ours": each.ours,
                "expected": each.expected[-200:],
                "stdout": each.outcome.stdout[-200:],
                "stderr": each.outcome.stderr[-200:],
            }
            for each in differences
        ],
    }


async def _differences(
    programs: Sequence[Program], outcomes: Sequence[Outcome], options: argparse.Namespace
) -> AsyncIterator[Difference]:
    for program, outcome in zip(programs, outcomes, strict=True):
        found = difference(program, outcome, None)
        if found is not None and found.ours and options.plain:
            plain = await asyncio.to_thread(run_plainly, program, options.wall_s)
            found = difference(program, outcome, plain)
        if found is not None:
            yield found


def show(report: dict[str, Any]) -> None:
    for row in report["differences"]:
        print(f"{row['id']}: {row['reason']}{' (unexplained)' if row['ours'] else ''}")
        print(f"    recorded {row['expected'].strip()!r}\n    got      {row['stdout'].strip()!r}")
        if row["stderr"].strip():
            print(f"    stderr   {row['stderr'].strip().splitlines()[-1]!r}")
    print(
        f"{report['agree']} of {report['programs']} programs ({report['share']:.2%}) print what is recorded "
        f"(through the {report['through']}); unexplained: {report['ours']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="JSONL of programs (llm_python_programs.jsonl)")
    parser.add_argument("--limit", type=int, help="only so many programs, from the top")
    parser.add_argument("--wall-s", type=float, default=10.0, help="seconds that a program may take")
    parser.add_argument("--plain", action="store_true", help="run what differs without a sandbox too")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--url", help="a running service, as host:port")
    place.add_argument("--serve", action="store_true", help="start a service and go through it")
    options = parser.parse_args()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(measure(options))
    except (FileNotFoundError, ValueError) as error:
        print(f"llm_programs: {error}", file=sys.stderr)
        return 2
    show(report)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["share"] >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
