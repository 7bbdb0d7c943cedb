"""`rocstar sandbox run`, `doctor`, `serve`, `mcp`, `worker` and `bench`.

Exit status of `run`: the program's own; 128 + N after signal N, as in a shell; 2 for a mistake in the command
line or a failure of the sandbox itself; 130 after Ctrl-C.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rocstar.sandbox.bench import add_bench_parser
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.console import guarded, parsed, say
from rocstar.sandbox.extras import left_out
from rocstar.sandbox.fabric.cli import add_worker_parser
from rocstar.sandbox.http.printable import printable
from rocstar.sandbox.service.cli import add_mcp_parser, add_serve_parser
from rocstar.sandbox.types import DEFAULT_LIMITS, LIMIT_BOUNDS, ExecRequest, ExecResult, Limits, Status

AUTO = "auto"
SIGNAL_BASE = 128
ATTACK_END_S = 60.0
BYTE_ORDER_MARK = "\ufeff"
"""What some editors write first into a file of UTF-8. Python passes over it in a file, not in a text."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit status."""
    options = parsed(lambda: build_parser().parse_args(argv))
    return guarded(lambda: int(options.run(options)))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rocstar sandbox", description="Run Python programs in isolation.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add_run(verbs)
    add_doctor(verbs)
    add_serve_parser(verbs)
    add_mcp_parser(verbs)
    add_worker_parser(verbs)
    add_bench_parser(verbs)
    return parser


def add_run(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser("run", help="run one program and show what it printed", description=__doc__)
    parser.add_argument("file", help="the program, or - for standard input")
    add = parser.add_argument
    add(
        "--flavour",
        choices=(AUTO, *FLAVOURS),
        default=AUTO,
        help="what is imported beforehand (default: %(default)s, by what the program imports)",
    )
    add(
        "--wall-s",
        type=float,
        default=DEFAULT_LIMITS.wall_s,
        help="wall clock, seconds (default: %(default)s)",
    )
    add(
        "--memory-bytes",
        type=int,
        default=DEFAULT_LIMITS.memory_bytes,
        help="address space (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, help="fix the random modules' state")
    parser.add_argument("--stdin", metavar="FILE", help="what the program reads as its standard input")
    parser.add_argument("--allow-no-isolation", action="store_true", help="run even without a seccomp filter")
    parser.add_argument("--json", action="store_true", help="print the whole result as one JSON object")
    parser.set_defaults(run=run)


def add_doctor(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser("doctor", help="show which isolation is active, and the fix for what is not")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--attack", action="store_true", help="run the attack suite; 0 only if all is held")
    parser.set_defaults(run=doctor)


def run(options: argparse.Namespace) -> int:
    if options.file == "-" and sys.stdin.isatty():
        say("reading a program from the terminal until Ctrl-D")
    code = read_text(options.file).removeprefix(BYTE_ORDER_MARK)
    stdin = read_text(options.stdin) if options.stdin else ""
    limits = limits_of(options)
    request = ExecRequest(code=code, stdin=stdin, limits=limits, flavour=options.flavour, seed=options.seed)
    if request.flavour == AUTO:
        say_what_is_left_out(code)
    result = asyncio.run(execute(request, allow_no_isolation=options.allow_no_isolation))
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        show(result)
    return SIGNAL_BASE + result.signal if result.signal is not None else result.exit_code or 0


def say_what_is_left_out(code: str) -> None:
    """Tells of the flavour that would suit the program, if its packages are not installed."""
    from rocstar.sandbox.child.scan import flavour_for

    for line in left_out([flavour_for(code, tuple(FLAVOURS))]):
        say(line, "run")


def limits_of(options: argparse.Namespace) -> Limits:
    """Raises ValueError naming the option."""
    for name in ("wall_s", "memory_bytes"):
        value, (low, high) = getattr(options, name), LIMIT_BOUNDS[name]
        if not low <= value <= high:  # NaN neither
            raise ValueError(f"--{name.replace('_', '-')} is {value}; give {low} to {high}")
    cpu_s = min(int(options.wall_s) + 1, LIMIT_BOUNDS["cpu_s"][1])
    return Limits(wall_s=options.wall_s, cpu_s=cpu_s, memory_bytes=options.memory_bytes)


async def execute(request: ExecRequest, *, allow_no_isolation: bool) -> ExecResult:
    # The pool brings asyncio's socket machinery along, which --help does not need.
    from rocstar.sandbox.pool.pool import SandboxPool
    from rocstar.sandbox.running import flavour_of

    pool = SandboxPool(
        (flavour_of(request),), max_live=1, max_queued=0, allow_no_isolation=allow_no_isolation
    )
    async with pool:
        return await pool.run(request)


def read_text(path: str) -> str:
    """A file's text, or standard input's for '-'. Bytes that are no UTF-8 become U+FFFD. Raises ValueError
    for one that cannot be read."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; give a file, or - for standard input"
        ) from None
    return data.decode("utf-8", "replace")


def _for(stream: TextIO, text: str) -> str:
    return printable(text) if stream.isatty() else text


def show(result: ExecResult) -> None:
    """What the program printed; to a terminal without control characters, which would steer it."""
    sys.stdout.write(_for(sys.stdout, result.stdout))
    if result.value is not None:
        print(_for(sys.stdout, result.value))
    sys.stdout.flush()
    sys.stderr.write(_for(sys.stderr, result.stderr))
    if result.status is not Status.OK:
        print(f"rocstar sandbox: {result.status} after {result.wall_s:.3f} s", file=sys.stderr)
    for name, cut in (("stdout", result.stdout_truncated), ("stderr", result.stderr_truncated)):
        if cut:
            print(f"rocstar sandbox: {name} was cut", file=sys.stderr)


def doctor(options: argparse.Namespace) -> int:
    """Exit status 1 when no pool can start, or when an attack did not come to what it must."""
    if options.attack:
        return attack(["--json"] if options.json else [])
    from rocstar.sandbox.doctor import command

    return command.main(options)


def attack(arguments: list[str]) -> int:
    """A process of its own, whose environment it chooses. Ctrl-C reaches it as well: it says so once its
    programs are gone."""
    with subprocess.Popen([sys.executable, "-P", "-m", "rocstar.sandbox.attacks.run", *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait(ATTACK_END_S)
