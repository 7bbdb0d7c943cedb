"""How long large bodies and answers keep the interpreter's lock from the service's loop.

    a worker's thread: the work      this thread: wakes every half millisecond, and notes what processor time
                                     the worker used between two of its turns

A worker that keeps the lock lets nobody wake, so the most that it used between two turns is at least as long
as it kept it, and on a busy machine more: of several runs the least is given. Each is compared with how it
was done before: the same work in a thread, by one call.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sandbox_bench import holds_fabric
from sandbox_bench.report import bar, finish

from rocstar.sandbox import _native
from rocstar.sandbox.bench import table
from rocstar.sandbox.loopback.apart import Apart
from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.process import READ_BYTES
from rocstar.sandbox.pool.soon import SWITCH_S
from rocstar.sandbox.pool.taken import Taken
from rocstar.sandbox.service.decode import decode_batch
from rocstar.sandbox.service.decode_code_judge import JudgeOptions, decode_submissions
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.http import to_json
from rocstar.sandbox.service.incoming import MIDDLE_BYTES
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.written import in_pieces
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, MAX_TEXT_BYTES, ExecResult

BAR_MS = 20.0
WAKE_S = 0.0005
MIB = 1 << 20

Work = Callable[[], object]


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("holds", help="how long large bodies and answers keep the loop waiting")
    parser.add_argument("--rounds", type=int, default=5)


def bodies() -> dict[str, bytes]:
    programs = json.dumps({"requests": [{"code": "x = 1\n" * 1300}] * 4096}).encode()
    long = "\u00e9\u6f22" * (MAX_TEXT_BYTES // 5)
    return {
        f"a batch of {len(programs) // MIB} MiB": programs,
        "one that ends in a mistake": programs + b"x",
        "65,536 short programs": json.dumps({"requests": [{"code": "print(1)"}] * 65_536}).encode(),
        "65,536 that are refused": json.dumps({"requests": [{"code": 1}] * 65_536}).encode(),
        "5,400 in 64 KiB": b'{"requests":[' + b",".join([b'{"code":""}'] * 5_400) + b"]}",
        "three programs of 16 MiB": json.dumps({"requests": [{"code": "#" * MAX_TEXT_BYTES}] * 3}).encode(),
        "one of 16 MiB, not ASCII": json.dumps({"requests": [{"code": long}]}, ensure_ascii=False).encode(),
    }


def judged() -> bytes:
    """A submission whose expected output is no text: 16 MiB of halves of surrogate pairs."""
    submission = {"type": "python", "solution": "1", "expected_output": "\ud800" * (MAX_TEXT_BYTES // 3)}
    return json.dumps({"submissions": [submission]}).encode()


def read_halves(size: int) -> str:
    """What the service did with it, once it had come from the process that decodes."""
    return ("\ud800" * (size // 3)).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")


def answers() -> dict[str, dict[str, str]]:
    return {
        "64 MiB of output, as an answer": {"stdout": "x" * MAX_OUTPUT_BYTES},
        "the same, not ASCII": {"stdout": "\u00e9\u6f22" * (MAX_OUTPUT_BYTES // 5)},
    }


def outputs() -> dict[str, bytes]:
    found = {f"{mib} MiB of output, from the supervisor": b"x" * (mib * MIB) for mib in (1, 8, 64)}
    return found | {"64 MiB of it, not ASCII": "\u00e9\u6f22".encode() * (MAX_OUTPUT_BYTES // 5)}


def sent_result(stdout: bytes) -> list[bytes]:
    """A result as it comes from the supervisor, in pieces as the pool reads them."""
    head = wire.RESULT_HEAD.pack(1, 0, 0, 0, 0, 0, 0, 0, len(stdout), 0, 0)
    sent = wire.frame(wire.RESULT, head + stdout)
    return [sent[begin : begin + READ_BYTES] for begin in range(0, len(sent), READ_BYTES)]


def read_at_once(pieces: list[bytes]) -> str:
    """As the pool did: one call makes the text."""
    return b"".join(pieces)[wire.RESULT_HEAD.size + 5 :].decode()


def read_result(pieces: list[bytes]) -> ExecResult:
    """As the pool does, but for the thread in which it makes long texts: this is one already."""
    reader, taken = _native.ResultReader(), Taken()
    for piece in pieces:
        for frame in reader.feed(piece):
            result = taken.result_of(frame, "", "")
    return taken.with_all(result)


def hold_ms(work: Work) -> float:
    clocks: queue.SimpleQueue[int] = queue.SimpleQueue()
    used: list[float] = []

    def act() -> None:
        clocks.put(time.pthread_getcpuclockid(threading.get_ident()))
        work()
        used.append(time.thread_time())

    worker = threading.Thread(target=act)
    worker.start()
    clock = clocks.get()
    most = last = 0.0
    while worker.is_alive():
        time.sleep(WAKE_S)
        try:
            now = time.clock_gettime(clock)
        except OSError:  # it has ended
            break
        most, last = max(most, now - last), now
    worker.join()
    return 1e3 * max(most, used[-1] - last)


def verdict_of(decode: Callable[[bytes], Any], body: bytes) -> object:
    try:
        return decode(body)
    except Refused as refusal:
        return refusal


async def run(options: argparse.Namespace) -> int:
    sys.setswitchinterval(SWITCH_S)
    rules = Rules(flavours=("stdlib",))
    decode = partial(decode_batch, rules=rules, owner="")
    processes = Apart(rules, Refused)
    works: dict[str, tuple[Work, Work]] = {}
    for name, body in bodies().items():
        beside = decode if len(body) <= MIDDLE_BYTES else partial(processes.call, decode)
        works[name] = partial(verdict_of, decode, body), partial(verdict_of, beside, body)
    judge = partial(decode_submissions, rules=rules, limits=JudgeOptions().limits)
    halves = partial(read_halves, MAX_TEXT_BYTES), partial(processes.call, judge, judged())
    works["16 MiB of halves of surrogate pairs"] = halves
    for name, answer in answers().items():
        works[name] = partial(to_json, answer), partial(in_pieces, answer)
    for name, stdout in outputs().items():
        pieces = sent_result(stdout)
        works[name] = partial(read_at_once, pieces), partial(read_result, pieces)
    works |= holds_fabric.beside()
    rows = []
    try:
        for name, (before, now) in works.items():
            least = [min(hold_ms(work) for _ in range(options.rounds)) for work in (before, now)]
            rows.append({"what": name, "before_ms": round(least[0], 1), "now_ms": round(least[1], 1)})
    finally:
        processes.close()
    rows += await holds_fabric.turns(options.rounds)
    print(table(("", "by one call, ms", "now, ms"), [list(row.values()) for row in rows]), end="\n\n")
    bars = [bar(f"{row['what']}, ms", row["now_ms"], BAR_MS, at_most=True) for row in rows]
    return finish("holds", {"rounds": options.rounds, "rows": rows}, bars, options.out)
