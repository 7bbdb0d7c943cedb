"""The same programs through rocstar, code-judge and `python -c`, in turn within one run. The interpreter of
code-judge's environment runs `python -c` too.

First every setting of code-judge is tried on every kind of program; its best (least CPU per call) for that
kind is the one compared. Then, kind by kind, rounds of: rocstar, code-judge, python -c. A ratio is that of
one round; the median over rounds is quoted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sandbox_bench import python_c
from sandbox_bench.code_judge import (
    SETTINGS,
    CodeJudge,
    Setting,
    code_judge,
    interpreter,
    redis_version,
    version,
)
from sandbox_bench.http_client import Client
from sandbox_bench.load import Load, drive, in_batches, summary
from sandbox_bench.programs import Program, load_real, nonced
from sandbox_bench.report import bar, finish
from sandbox_bench.rocstar_service import Service, judge_batch, native_batch, service
from sandbox_bench.stats import median

from rocstar.sandbox.bench import table

BATCH = 64
BARS = {"print": 10.0, "sympy": 50.0, "real": 15.0}
REAL_CALLS = 96
TRIAL_CALLS = {"print": 64, "numpy": 16, "sympy": 8, "real": 32}
PEER_CALLS = {"print": 192, "numpy": 64, "sympy": 24, "real": REAL_CALLS}
OUR_CALLS = {"print": 1024, "numpy": 512, "sympy": 384, "real": REAL_CALLS}
PYTHON_CALLS = {"print": 64, "numpy": 16, "sympy": 8, "real": REAL_CALLS}
OUR_REPEATS = {"real": 4}
"""How often rocstar gets the same sample in a round: one pass would be too short to measure."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("peers", help="ratios to code-judge and to python -c, in one run")
    parser.add_argument("--code-judge", type=Path, required=True, help="a checkout with .venv (see the docs)")
    parser.add_argument("--code-judge-python", type=Path, help="its interpreter, unless in .venv")
    parser.add_argument("--data", type=Path, help="JSONL of real programs (llm_python_programs.jsonl)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="try only the first so many")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of calls")


class Supply:
    """Programs for everyone. Ones with a nonce never repeat. Real ones differ much in cost, so in a round all
    systems get the same sample: every so-many-th program of the file, another offset each round. Scaled
    counts are at least 2."""

    def __init__(self, data: Path | None, scale: float) -> None:
        self._streams = {kind: nonced(kind) for kind in ("print", "numpy", "sympy")}
        self._real = load_real(data) if data else []
        self._scale = scale
        self.kinds = [*self._streams, *(["real"] if self._real else [])]

    def take(self, kind: str, count: int, number: int = 0) -> list[Program]:
        """`count` programs, of the sample of round `number` if they are real."""
        count = max(2, int(count * self._scale))
        if kind != "real":
            return [next(self._streams[kind]) for _ in range(count)]
        step = max(1, len(self._real) // count)
        return self._real[number % step :: step][:count]


async def _through(
    client: Client, route: str, programs: list[Program], roots: Sequence[int], *, lanes: int
) -> Load:
    async def send(batch: Sequence[Program]) -> list[str | None]:
        if route == "/v1/batch":
            return await native_batch(client, batch)
        return await judge_batch(client, batch, route)

    return await drive(send, in_batches(iter(programs), len(programs), BATCH), lanes=lanes, roots=roots)


async def _peer(judge: CodeJudge, programs: list[Program]) -> Load:
    async with Client("127.0.0.1", judge.port) as client:
        return await _through(client, judge.setting.route, programs, judge.roots, lanes=2)


async def _ours(server: Service, programs: list[Program]) -> Load:
    async with server.client() as client:
        return await _through(client, "/v1/batch", programs, [server.pid], lanes=4)


async def _trials(options: argparse.Namespace, supply: Supply) -> list[dict[str, Any]]:
    rows = []
    for setting in SETTINGS[: options.settings]:
        with code_judge(options.code_judge, setting, options.code_judge_python) as judge:
            await _peer(judge, supply.take("print", 8))
            for kind in supply.kinds:
                load = await _peer(judge, supply.take(kind, TRIAL_CALLS[kind]))
                rows.append({"setting": setting.name, "program": kind, **summary([load])})
                print(f"  {setting.name}: {kind} {load.cpu_ms_per_call:.1f} ms CPU per call", flush=True)
    return rows


def _best(trials: Sequence[dict[str, Any]], kind: str) -> Setting:
    mine = [row for row in trials if row["program"] == kind]
    name = min(mine, key=lambda row: row["cpu_ms_per_call"])["setting"]
    return next(setting for setting in SETTINGS if setting.name == name)


async def _compare(
    options: argparse.Namespace, supply: Supply, kind: str, setting: Setting, server: Service
) -> dict[str, list[Load]]:
    loads: dict[str, list[Load]] = {"rocstar": [], "code-judge": [], "python -c": [], "python -c, 2": []}
    with ExitStack() as stack:
        judge = stack.enter_context(code_judge(options.code_judge, setting, options.code_judge_python))
        await _peer(judge, supply.take(kind, 4))
        await _ours(server, supply.take(kind, BATCH))
        for number in range(options.rounds):
            ours = supply.take(kind, OUR_CALLS[kind], number) * OUR_REPEATS.get(kind, 1)
            loads["rocstar"].append(await _ours(server, ours))
            loads["code-judge"].append(await _peer(judge, supply.take(kind, PEER_CALLS[kind], number)))
            few, python = PYTHON_CALLS[kind], str(interpreter(options.code_judge, options.code_judge_python))
            loads["python -c"].append(
                python_c.run_all(supply.take(kind, few, number), at_once=1, python=python)
            )
            loads["python -c, 2"].append(
                python_c.run_all(supply.take(kind, few, number), at_once=2, python=python)
            )
    return loads


async def run(options: argparse.Namespace) -> int:
    supply = Supply(options.data, options.scale)
    trials = await _trials(options, supply)
    rows, ratios, bars = [], [], []
    with service(*options.serve_option) as server:
        for kind in supply.kinds:
            best = _best(trials, kind)
            loads = await _compare(options, supply, kind, best, server)
            rows += [{"program": kind, "system": name, **summary(load)} for name, load in loads.items()]
            for name in ("code-judge", "python -c"):
                pairs = zip(loads[name], loads["rocstar"], strict=True)
                each = [theirs.cpu_ms_per_call / ours.cpu_ms_per_call for theirs, ours in pairs]
                faster = median([load.calls_per_s for load in loads["rocstar"]]) / median(
                    [load.calls_per_s for load in loads[name]]
                )
                ratios.append(
                    {
                        "program": kind,
                        "peer": name,
                        "setting": best.name if name == "code-judge" else "one at a time",
                        "cpu_ratio": round(median(each), 2),
                        "cpu_ratio_rounds": [round(value, 2) for value in each],
                        "throughput_ratio": round(faster, 2),
                    }
                )
                if name == "code-judge" and kind in BARS:
                    label = f"{kind}: CPU per call, code-judge over rocstar"
                    bars.append(bar(label, ratios[-1]["cpu_ratio"], BARS[kind], at_most=False))
    headings = ("program", "system", "calls", "wrong", "CPU ms/call", "calls/s")
    names = ("program", "system", "calls", "wrong", "cpu_ms_per_call", "calls_per_s")
    print(table(headings, [[row[name] for name in names] for row in rows]), end="\n\n")
    names = ("program", "peer", "cpu_ratio", "throughput_ratio", "setting")
    print(table(names, [[ratio[name] for name in names] for ratio in ratios]), end="\n\n")
    result = {
        "peer": {"name": "code-judge", "commit": version(options.code_judge), "redis": redis_version()},
        "counted": "code-judge: uvicorn, workers, their children, redis-server; rocstar: the service's tree",
        "settings_tried": trials,
        "rows": rows,
        "ratios": ratios,
    }
    return finish("peers", result, bars, options.out)
