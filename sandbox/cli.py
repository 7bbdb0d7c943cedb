"""`rocstar sandbox run`, `doctor`, `serve`, `mcp`, `worker` and `bench`: verbs.toml has their options."""

import argparse
import asyncio
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rocstar.sandbox import bench
from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.command_line import CommandParser, add_options, parse_or_exit, print_status, run_command
from rocstar.sandbox.extras import left_out, missing_extra_message, offered_flavours
from rocstar.sandbox.fabric.cli import run_worker
from rocstar.sandbox.http.listening import add_access_log_options, add_listening_options
from rocstar.sandbox.http.printable import printable
from rocstar.sandbox.types import DEFAULT_LIMITS, LIMIT_BOUNDS, ExecRequest, ExecResult, Limits, Status

AUTO = "auto"
SIGNAL_BASE = 128
ATTACK_END_S = 60.0
BYTE_ORDER_MARK = "\ufeff"
"""Some editors write it at the start of UTF-8 files. Python ignores it in files but not in strings."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    options = parse_or_exit(lambda: build_parser().parse_args(argv))
    return run_command(lambda: int(options.run(options)))


def build_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(
        prog="rocstar sandbox", description="Run Python programs in isolation."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, entry in _TABLE.items():
        verb = verbs.add_parser(name, help=entry["help"], description=entry.get("description"))
        verb.set_defaults(run=_WORK[name])
        if name == "run":
            text = "packages imported before the program starts (default: %(default)s, by its imports)"
            verb.add_argument("--flavour", choices=(AUTO, *FLAVOURS), default=AUTO, help=text)
        elif name == "serve":
            add_listening_options(verb, 8088)
            add_access_log_options(verb)
        elif name == "mcp":
            add_listening_options(verb.add_argument_group("with --http"), 8089)
        add_options(verb, entry["options"])
        verb.set_defaults(**_machine_defaults(name))
    return parser


def _machine_defaults(verb: str) -> dict[str, Any]:
    """Return the defaults of options that depend on the machine or on the limits."""
    limits, offered = DEFAULT_LIMITS, offered_flavours()
    flavours = {"flavours": ",".join(offered)}
    defaults: dict[str, dict[str, Any]] = {
        "run": {"wall_s": limits.wall_s, "memory_bytes": limits.memory_bytes},
        "serve": flavours | {"file_bytes": limits.file_bytes, "files": limits.files},
        "mcp": {"flavours": ",".join(name for name in offered if name != "cpp")},
        "worker": flavours,
    }
    return defaults.get(verb, {})


def run(options: argparse.Namespace) -> int:
    if options.file == "-" and sys.stdin.isatty():
        print_status("reading a program from the terminal until Ctrl-D")
    code = read_text(options.file).removeprefix(BYTE_ORDER_MARK)
    stdin = read_text(options.stdin) if options.stdin else ""
    limits = limits_of(options)
    request = ExecRequest(code=code, stdin=stdin, limits=limits, flavour=options.flavour, seed=options.seed)
    if request.flavour == AUTO:
        from rocstar.sandbox.child.import_scan import select_flavour

        for line in left_out([select_flavour(code, tuple(FLAVOURS))]):  # its packages are not installed
            print_status(line, "run")
    result = asyncio.run(execute(request, allow_no_isolation=options.allow_no_isolation))
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        show(result)
    return SIGNAL_BASE + result.signal if result.signal is not None else result.exit_code or 0


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits. Raise ValueError that names the option."""
    for name in ("wall_s", "memory_bytes"):
        value, (low, high) = getattr(options, name), LIMIT_BOUNDS[name]
        if not low <= value <= high:  # also rejects NaN
            raise ValueError(f"--{name.replace('_', '-')} is {value}. Pass {low} to {high}.")
    cpu_s = min(int(options.wall_s) + 1, LIMIT_BOUNDS["cpu_s"][1])
    return Limits(wall_s=options.wall_s, cpu_s=cpu_s, memory_bytes=options.memory_bytes)


async def execute(request: ExecRequest, *, allow_no_isolation: bool) -> ExecResult:
    # The pool imports asyncio's sockets, which --help does not need.
    from rocstar.sandbox.pool.pool import SandboxPool
    from rocstar.sandbox.sync import flavour_of

    pool = SandboxPool((flavour_of(request),), max_live=1, max_queued=0, allow_no_isolation=allow_no_isolation)
    async with pool:
        return await pool.run(request)


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for '-'. Invalid UTF-8 becomes U+FFFD. Raise ValueError
    if it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}. Pass a file, or - for standard input.") from None
    return data.decode("utf-8", "replace")


def _for(stream: TextIO, text: str) -> str:
    return printable(text) if stream.isatty() else text


def show(result: ExecResult) -> None:
    """Print the program's output; on a terminal without control characters."""
    sys.stdout.write(_for(sys.stdout, result.stdout))
    if result.value is not None:
        print(_for(sys.stdout, result.value))
    sys.stdout.flush()
    sys.stderr.write(_for(sys.stderr, result.stderr))
    if result.status is not Status.OK:
        print(f"rocstar sandbox: {result.status} after {result.wall_s:.3f} s", file=sys.stderr)
    for name, truncated in (("stdout", result.stdout_truncated), ("stderr", result.stderr_truncated)):
        if truncated:
            print(f"rocstar sandbox: {name} was truncated", file=sys.stderr)


def doctor(options: argparse.Namespace) -> int:
    """Run the verb. Return 1 if no pool can start or an attack was not contained, else 0."""
    if options.attack:
        return attack(["--json"] if options.json else [])
    from rocstar.sandbox.doctor import report

    return report.main(options)


def attack(arguments: list[str]) -> int:
    """Run the attack suite in a process with its own environment. Ctrl-C interrupts it as well, and it ends
    when its programs are gone."""
    with subprocess.Popen([sys.executable, "-P", "-m", "rocstar.sandbox.attacks.run", *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait(ATTACK_END_S)


def _serve(options: argparse.Namespace) -> int:
    from rocstar.sandbox.service.serve import run

    return run(options)


def _serve_mcp(options: argparse.Namespace) -> int:
    if missing := missing_extra_message("rocstar sandbox mcp", "mcp"):
        raise ValueError(missing)
    from rocstar.sandbox.service.model_context.server import run

    return run(options)


_TABLE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("verbs.toml").read_text(encoding="utf-8"))
_WORK: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "doctor": doctor,
    "serve": _serve,
    "mcp": _serve_mcp,
    "worker": run_worker,
    "bench": bench.run,
}
"""The work of each verb. A server is imported when it runs, so that `--help` stays fast."""
