"""Pairs of programs, one of which tries to send a number to the other: the files of pairs/, and how they are
run.

A file (with the suffix .txt if it has two languages) has a header of `# field: value` lines, the sender, a
line `# %% receiver` and the receiver:

    when      live: both run concurrently; after: the receiver runs after the sender
    tries     the carrier of the number            through   system calls that it needs from the filter
    bits      bits of a number (16)                baseline  yes: the change of the receiver's number counts
    sender    the pair whose sender is used        needs     facts of the machine
    open      the condition of a known channel; docs/reference/threats.md lists it with its bits per second
    closed-with  layers with which it must not pass
    flavours  flavours of sender and receiver (stdlib stdlib); only a Python receiver has the helpers
    without   layers that must be disabled for it to pass; closed pairs are tested with all layers
    cold      yes: both have COLD, a file that is not cached
    slots     for a stream: seconds per symbol of `bits`

number.py, and stream.py for a stream, describe the other variables of the programs.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.child import bash, cpp
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.child.cpp import CPP
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

FOLDER = Path(__file__).parent / "pairs"
STDLIB = "stdlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    name: str
    tries: str
    when: str
    bits: int
    through: tuple[str, ...]
    needs: frozenset[str]
    baseline: bool
    open: str
    closed_with: frozenset[str]
    cold: bool
    without: tuple[str, ...]
    flavours: tuple[str, str]
    slots: tuple[float, ...]
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """The result of a pair. bits_per_s: during the receiver's reading, without the start of the programs."""

    passed: bool
    bits_per_s: float
    output: str


def load_pairs(folder: Path = FOLDER) -> dict[str, Pair]:
    """Load all pairs by name. Raise ValueError that names the file."""
    paths = sorted((*folder.glob("*.py"), *folder.glob("*.txt")))
    texts = {path.stem: path.read_text("utf-8") for path in paths}
    return {name: _parse(name, text, texts) for name, text in texts.items()}


def _parse(name: str, text: str, texts: dict[str, str]) -> Pair:
    fields = dict(re.findall(r"^# ([a-z-]+): (.*)$", text, re.M))
    head, found, receiver = text.partition("# %% receiver\n")
    if not found or "tries" not in fields or "through" not in fields:
        raise ValueError(f"{name}: a pair needs `tries`, `through` and a line `# %% receiver`")
    if origin := fields.get("sender"):
        head = texts[origin].partition("# %% receiver\n")[0]
        fields = {**dict(re.findall(r"^# ([a-z-]+): (.*)$", head, re.M)), **fields}
    of_sender, of_receiver = fields.get("flavours", f"{STDLIB} {STDLIB}").split()
    return Pair(
        name=name,
        tries=fields["tries"],
        when=fields["when"],
        bits=int(fields.get("bits", 16)),
        through=tuple(fields["through"].split()),
        needs=frozenset(fields.get("needs", "").split()),
        baseline=fields.get("baseline") == "yes",
        open=fields.get("open", ""),
        closed_with=frozenset(fields.get("closed-with", "").split()),
        without=tuple(fields.get("without", "").split()),
        cold=fields.get("cold") == "yes",
        flavours=(of_sender, of_receiver),
        slots=tuple(map(float, fields.get("slots", "").split())),
        sender=head,
        receiver=receiver,
    )


def is_offered(pair: Pair) -> bool:
    """Return True if this machine has the flavours of both programs."""
    offered = {STDLIB: True, BASH: bash.offered(), CPP: cpp.offered()}
    return all(offered[flavour] for flavour in pair.flavours)


def flavours_of(pairs: Iterable[Pair]) -> tuple[str, ...]:
    return tuple(sorted({flavour for pair in pairs for flavour in pair.flavours}))


# --- running ---------------------------------------------------------------------------------------------

LIMITS = Limits(wall_s=10.0, cpu_s=10, memory_bytes=2 << 30)

Run = Callable[[str, str], Awaitable[str]]
"""Runs a program of a flavour and returns its output."""

BROKEN = re.compile(r"\b(?:Import|ModuleNotFound|Name|Syntax|Attribute|Type|Value|Index|Key)Error\b|command not found")
"""The errors of a program that did not run its attack."""


def output_of(pair_of_programs: str, result: ExecResult) -> str:
    """Return the output. Raise RuntimeError for a broken program, whose silence proves nothing."""
    if BROKEN.search(result.stderr):
        raise RuntimeError(f"the program is broken: {result.stderr[-400:]}\n{pair_of_programs}")
    return result.stdout or f"{result.status} {result.stderr[-200:]}"


def calls_of(pool: SandboxPool) -> Run:
    async def run(code: str, flavour: str = STDLIB) -> str:
        result = await pool.run(ExecRequest(code=code, limits=LIMITS, flavour=flavour))
        return output_of(code, result)

    return run
