"""Ordinary programs, run by the interpreter alone and in the sandbox, and what differs.

    python tests/sandbox/ordinary/ordinary.py [NAME...]      prints what differs

A program is a file of `programs`; a first line `# stdin: TEXT`, with \\n for line ends, is its input.
Compared are standard output, the exit status, and the files that the program leaves in its directory.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox import ExecRequest, Limits, SandboxPool
from rocstar.sandbox.types import ExecResult

HERE = Path(__file__).parent
FLAVOURS = ("stdlib", "numeric")
WALL_S = 60.0
"""Of each program on either side: far beyond what any takes, for tests share a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """status: an exit code, or a signal as a negative number."""

    stdout: bytes
    status: int
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordinary:
    name: str
    code: str
    stdin: str


def programs(names: Iterable[str] = ()) -> list[Ordinary]:
    """All of them, or those named, in the order of their names."""
    wanted = set(names)
    found = []
    for path in sorted((HERE / "programs").glob("*.txt")):
        if wanted and path.stem not in wanted:
            continue
        code = path.read_text()
        first, _, rest = code.partition("\n")
        stdin = ""
        if first.startswith("# stdin: "):
            stdin, code = first.removeprefix("# stdin: ").replace("\\n", "\n"), rest
        found.append(Ordinary(name=path.stem, code=code, stdin=stdin))
    return found


def differences() -> dict[str, str]:
    """The programs that are known to differ, with the reason."""
    table: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "differences.toml").read_text())
    return {name: reason for reason, row in table.items() for name in row["programs"]}


def run_plainly(program: Ordinary) -> Ending:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(program.code)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, str(path)],
            input=program.stdin.encode(),
            capture_output=True,
            cwd=folder,
            env=environment,
            timeout=WALL_S,
            check=False,
        )
        left = {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
    files = {name: content for name, content in left.items() if name != "program.py" and name[0] != "."}
    return Ending(stdout=done.stdout, status=done.returncode, files=files)


async def run_in_sandbox(wanted: list[Ordinary], plain: list[Ending]) -> list[Ending]:
    requests = [
        ExecRequest(
            code=program.code,
            stdin=program.stdin,
            limits=Limits(wall_s=WALL_S, cpu_s=int(WALL_S)),
            fetch=tuple(ending.files)[:64],
        )
        for program, ending in zip(wanted, plain, strict=True)
    ]
    async with SandboxPool(FLAVOURS) as pool, asyncio.timeout(20 * WALL_S):
        results = await asyncio.gather(*map(pool.run, requests))
    return [ending_of(result) for result in results]


def ending_of(result: ExecResult) -> Ending:
    status = -(result.signal or 0) if result.exit_code is None else result.exit_code
    return Ending(stdout=result.stdout.encode(), status=status, files=dict(result.files))


def same_files(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    """Archives, databases and pickles hold times and the like: of those only that they are there."""
    text = (".txt", ".csv", ".json", ".ini", ".log", ".md", ".xml")
    return one.keys() == other.keys() and all(
        content == other[name] for name, content in one.items() if name.endswith(text)
    )


def compare(wanted: list[Ordinary]) -> dict[str, tuple[Ending, Ending]]:
    """Those that end otherwise in the sandbox, with both endings."""
    with ThreadPoolExecutor(2) as threads:
        plain = list(threads.map(run_plainly, wanted))
    held = asyncio.run(run_in_sandbox(wanted, plain))
    found = {}
    for program, one, other in zip(wanted, plain, held, strict=True):
        alike = (one.stdout, one.status) == (other.stdout, other.status)
        if not alike or not same_files(one.files, other.files):
            found[program.name] = (one, other)
    return found


def main() -> int:
    wanted = programs(sys.argv[1:])
    found = compare(wanted)
    known = differences()
    for name, (one, other) in found.items():
        print(f"{'known' if name in known else 'NEW  '} {name}")
        for told, ending in (("plain", one), ("here", other)):
            print(f"    {told:5} {ending.status:3} {ending.stdout[:160]!r} {sorted(ending.files)[:6]}")
    print(f"{len(wanted) - len(found)} of {len(wanted)} end alike")
    return int(bool(found.keys() - known.keys()))


if __name__ == "__main__":
    sys.exit(main())
