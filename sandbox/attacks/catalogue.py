"""The attack programs as data: the attack and the expected result of each file in programs/.

A file is one attack of one or more parts, separated by lines `# %% kind`. A part begins with a block of
comments, `# field: value`; the rest is the program. Kinds of parts:

    call        a program that runs after the previous part (the default of the first part)
    meanwhile   a program that runs concurrently with the previous part
    cell        a cell of the file's session        other   the first cell of another session
    branch      a cell of a branch of the session   pause   waits `seconds`

Fields of a file: group, tries, breach (the sign of success: the program prints `BREACH: ...`), held-by
(layers), needs (facts of the machine), compare (`differ` or `same`: outputs of the last two parts),
breaches-without (layers, joined by +, without which the attack succeeds, if that does no harm; after `when`,
the facts that this requires), loosened (limits with which it succeeds).

Fields of a part: expect (statuses; `lost` for a session that is gone, `refused` for a branch that was not
created), output (a regular expression that standard output, error or value must match), forbid (one that they
must not match), limits, flavour, seed, stdin (`facts`: the facts of the host, as JSON), value (`none`),
truncated (`no`), may-raise (the name of an exception that would otherwise mean that the attack did not run),
fetch (names of files to fetch; `name*3` is name0 name1 name2), displays (`yes`: requested). With either,
`output` and `forbid` also see lines `FETCHED ...` and `DISPLAY ...`.

A file with the suffix .sh has bash programs, with bash comments and the bash flavour.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER = Path(__file__).parent / "programs"
FLAVOURS: Final = {".py": "stdlib", ".sh": "bash"}

GROUPS: Final = tuple(
    "processes memory cpu output files network ipc others syscalls secrets persistence sessions benign".split()
)
KINDS: Final = ("call", "meanwhile", "cell", "branch", "other", "pause")
FILE_FIELDS: Final = frozenset("group mode breach held-by needs compare breaches-without loosened".split())
PART_FIELDS: Final = frozenset(
    "tries expect output forbid limits flavour seed stdin value truncated may-raise seconds fetch displays".split()
)
STATUSES: Final = frozenset("ok error signaled timeout memory_limit output_limit denied lost refused".split())

_FIELD = re.compile(r"# ([a-z-]+): (.*)")
_SEPARATOR = re.compile(r"^# %% (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A configuration in which the attack succeeds: without some layers, or with looser limits. needs:
    required facts."""

    without: frozenset[str] = frozenset()
    limits: Mapping[str, float]
    needs: frozenset[str]

    @property
    def label(self) -> str:
        loosened = [f"{name}={value}" for name, value in self.limits.items()]
        return "+".join(sorted(self.without) or loosened)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    kind: str
    code: str
    expect: frozenset[str]
    output: re.Pattern[str]
    forbid: re.Pattern[str] | None
    limits: Mapping[str, float]
    flavour: str
    seed: int | None
    wants_facts: bool
    no_value: bool
    no_truncation: bool
    may_raise: str
    seconds: float
    fetch: tuple[str, ...]
    displays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    group: str
    tries: str
    breach: str
    held_by: str
    needs: frozenset[str]
    compare: str
    variants: tuple[Variant, ...]
    parts: tuple[Part, ...]


def load_programs(folder: Path = FOLDER) -> list[Program]:
    """Load all programs, sorted by group and name. Raise ValueError that names the file and the field."""
    paths = sorted((*folder.glob("*.py"), *folder.glob("*.sh")))
    programs = [parse(path.stem, path.read_text("utf-8"), FLAVOURS[path.suffix]) for path in paths]
    return sorted(programs, key=lambda program: (GROUPS.index(program.group), program.name))


def parse(name: str, text: str, flavour: str = "stdlib") -> Program:
    """Parse a file. flavour: the default of its parts. Raise ValueError."""
    pieces = _SEPARATOR.split(text)
    fields, code = split_header(pieces[0])
    first = "cell" if fields.get("mode") == "session" else "call"
    try:
        own = {field: fields.pop(field) for field in FILE_FIELDS & fields.keys()}
        parts = [make_part(first, fields, code, flavour)]
        for kind, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            parts.append(make_part(kind, *split_header(piece), flavour))
        group = own["group"]
        if group not in GROUPS:
            raise ValueError(f"unknown group {group!r}. Choose from {', '.join(GROUPS)}.")
        return Program(
            name=name,
            group=group,
            tries=fields["tries"],
            breach="" if group == "benign" else own["breach"],
            held_by="" if group == "benign" else own["held-by"],
            needs=words(own.get("needs", "")),
            compare=own.get("compare", ""),
            variants=tuple(make_variants(own)),
            parts=tuple(parts),
        )
    except KeyError as missing:
        raise ValueError(f"{name}: the field {missing} is missing") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def split_header(text: str) -> tuple[dict[str, str], str]:
    fields: dict[str, str] = {}
    lines = text.splitlines(keepends=True)
    while lines and (match := _FIELD.fullmatch(lines[0].rstrip("\n"))):
        fields[match[1]] = match[2].strip()
        lines.pop(0)
    fields.pop("mypy", None)
    return fields, "".join(lines)


def make_part(kind: str, fields: Mapping[str, str], code: str, flavour: str) -> Part:
    if kind not in KINDS:
        raise ValueError(f"unknown kind of part {kind!r}. Choose from {', '.join(KINDS)}.")
    if unknown := fields.keys() - PART_FIELDS:
        raise ValueError(f"unknown field {min(unknown)!r}")
    is_pause = kind == "pause"
    expect = frozenset(("ok",)) if is_pause else words(fields["expect"])
    if not expect or expect - STATUSES:
        raise ValueError(f"expect is {sorted(expect)}. Choose from {', '.join(sorted(STATUSES))}.")
    return Part(
        kind=kind,
        code=code,
        expect=expect,
        output=re.compile(r"\A" if is_pause else fields["output"], re.MULTILINE),
        forbid=re.compile(fields["forbid"]) if "forbid" in fields else None,
        limits=read_limits(fields.get("limits", "")),
        flavour=fields.get("flavour", flavour),
        seed=int(fields["seed"]) if "seed" in fields else None,
        wants_facts=fields.get("stdin") == "facts",
        no_value=fields.get("value") == "none",
        no_truncation=fields.get("truncated") == "no",
        may_raise=fields.get("may-raise", ""),
        seconds=float(fields["seconds"]) if is_pause else 0.0,
        fetch=tuple(name for word in fields.get("fetch", "").split() for name in numbered(word)),
        displays=fields.get("displays") == "yes",
    )


def numbered(word: str) -> list[str]:
    name, _, count = word.partition("*")
    return [f"{name}{number}" for number in range(int(count))] if count else [name]


def make_variants(fields: Mapping[str, str]) -> list[Variant]:
    variants = []
    if text := fields.get("breaches-without"):
        layers, _, needs = text.partition(" when ")
        variants.append(Variant(without=frozenset(layers.split("+")), limits={}, needs=words(needs)))
    if text := fields.get("loosened"):
        limits, _, needs = text.partition(" when ")
        variants.append(Variant(limits=read_limits(limits), needs=words(needs)))
    return variants


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def read_limits(text: str) -> dict[str, float]:
    """Parse `wall_s=0.3 memory_bytes=1000` into a dict; whole numbers stay int."""
    limits: dict[str, float] = {}
    for word in text.split():
        name, _, number = word.partition("=")
        limits[name] = int(number) if number.isdigit() else float(number)
    return limits


# --- the comparison of results with the expected ones ------------------------------------------------------

VACUOUS = (
    *("ModuleNotFoundError", "ImportError", "NameError", "SyntaxError", "AttributeError", "TypeError"),
    *("command not found", "syntax error"),
)
"""Errors that mean that the attack did not run: a failure of the suite, never a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """status: as in `ExecResult`, or `lost`, `refused` (a branch), `failed` (a SandboxError), `hung`."""

    status: str
    text: str
    stdout: str = ""
    value: str | None = None
    truncated: bool = False


def judge(program: Program, results: Sequence[PartResult]) -> list[str]:
    """Return the differences from the expected results, or []."""
    problems: list[str] = []
    parts = [part for part in program.parts if part.kind != "pause"]
    for number, (part, result) in enumerate(zip(parts, results, strict=True), 1):
        problems += [f"part {number}: {problem}" for problem in judge_part(part, result)]
    if program.compare and not problems:
        one, other = [result.stdout.split() for result in results if result.stdout][-2:]
        # Words without a digit are labels; each drawn number is compared separately.
        same = [a == b for a, b in zip(one, other, strict=True) if re.search(r"\d", a + b)]
        if not same or any(equal != (program.compare == "same") for equal in same):
            problems.append(f"the drawn numbers should be {program.compare}: {one} {other}")
    return problems


def judge_part(part: Part, result: PartResult) -> list[str]:
    problems = []
    excerpt = result.text if len(result.text) <= 600 else result.text[:300] + " ... " + result.text[-300:]
    if result.status not in part.expect:
        problems.append(f"status {result.status}, expected {' or '.join(sorted(part.expect))}: {excerpt!r}")
    elif not part.output.search(result.text):
        problems.append(f"the output does not match {part.output.pattern!r}: {excerpt!r}")
    if "BREACH" in result.text:
        problems.append(f"breach: {excerpt!r}")
    if part.forbid is not None and part.forbid.search(result.text):
        problems.append(f"the output matches {part.forbid.pattern!r}: {excerpt!r}")
    for word in VACUOUS:
        if word in result.text and word != part.may_raise:
            problems.append(f"the attack did not run: {excerpt!r}")
    if part.no_value and result.value is not None:
        problems.append(f"a value appeared: {result.value[:100]!r}")
    if part.no_truncation and result.truncated:
        problems.append("the output is marked as truncated")
    return problems
