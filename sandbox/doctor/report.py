"""`rocstar sandbox doctor`: starts a pool, runs one program in it, and reports layers and limits of the
machine, as text or as JSON."""

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocstar.sandbox.doctor.facts import gather, read
from rocstar.sandbox.doctor.layers import Layer, MachineLimit, TrialPool, layers_of, limits_of
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, SandboxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    tier: str
    why: str
    layers: list[Layer]
    limits: list[MachineLimit]
    facts: dict[str, Any]


def examine() -> Report:
    """Start a pool, close it and return the report. A pool that cannot start is a part of the report."""
    return report_of(asyncio.run(try_pool()), gather())


async def try_pool() -> TrialPool:
    try:
        async with SandboxPool(max_live=1, max_queued=1) as pool:
            result = await pool.run(ExecRequest(code="import os; os.getcwd()"))
            status = read(f"/proc/{pool.supervisor_pid}/status")
            built = pool.built
    except SandboxError as error:
        return TrialPool(error=str(error))
    return TrialPool(
        isolation=frozenset(result.isolation.split("+")),
        tier=result.tier,
        scratch=result.value != "'/'",
        built=frozenset(built.split("+")),
        status=dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line),
    )


def report_of(started: TrialPool, facts: dict[str, Any]) -> Report:
    layers = [replace(one, cost="", reason="", fix="") if one.active else one for one in layers_of(started, facts)]
    limits = [one if one.note else replace(one, fix="") for one in limits_of(facts)]
    missing = [layer.name for layer in layers if not layer.active]
    if started.error:
        why = started.error
    elif started.tier == "B":
        why = "a filter, limits and files of its own for every program, inside namespaces of the pool's own"
    else:
        why = "a filter, limits and files of its own for every program; there are no namespaces"
    if missing and not started.error:
        why += f" (absent: {', '.join(missing)})"
    return Report(tier=started.tier, why=why, layers=layers, limits=limits, facts=facts)


def main(options: argparse.Namespace) -> int:
    """Print the report. Return 1 if no pool can start, else 0."""
    report = examine()
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        show(report)
    return int(report.tier == "none")


def show(report: Report) -> None:
    print(f"tier {report.tier}: {report.why}\n")
    for one in report.layers:
        word = "active" if one.active else "MISSING" if one.required else "absent"
        print(f"{word:<8} {one.name:<17} {one.detail}")
        for label, text in (("cost", one.cost), ("why", one.reason), ("fix", one.fix)):
            if text:
                print(f"{'':<27}{label}: {text}")
    print()
    for limit in report.limits:
        print(f"{limit.name:<11} {limit.value}")
        for label, text in (("note", limit.note), ("fix", limit.fix)):
            if text:
                print(f"{'':<12}{label}: {text}")
