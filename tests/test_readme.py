"""Every command and path of the README and the guides is real, and blocks can be pasted in order."""

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from rocstar.train.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RUN_BY_TESTS = {
    "callbacks.md",
    "chat.md",
    "data.md",
    "own-agent.md",
    "own-data.md",
    "own-engine.md",
    "own-environment.md",
    "own-loop.md",
    "own-reward.md",
    "own-tool.md",
    "production.md",
    "sandbox-alone.md",
    "serve.md",
}
"""Guides whose blocks are run, not only looked at."""
GUIDES = [page for page in sorted((ROOT / "docs" / "guide").glob("*.md")) if page.name not in RUN_BY_TESTS]
PLAIN_COMMANDS = {"apt-get", "cd", "curl", "echo", "export", "git", "kill", "pip", "python3", "sudo", "."}
"""Commands that are not ours; of these only the file names are checked."""

FILE_NAME = re.compile(r"^[\w./-]+\.(toml|py|md|svg|png|txt|cpp|h)$")

ALWAYS_THERE = {".", "apt-get", "cd", "echo", "export", "kill", "sudo"}
IN_VENV = {"pip", "python", "rocstar", "torchrun"}
"""Found once `. .venv/bin/activate` was run; the rest is there once an apt line named a package so."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a shell block, and what the shell does with it."""

    words: tuple[str, ...]
    is_fed: bool
    """By a pipe or a file."""
    is_background: bool
    is_last: bool
    """Nothing of its block follows."""

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2]

    def __str__(self) -> str:
        return shlex.join(self.words)


def of_line(line: str, *, is_last: bool = True) -> Iterator[Command]:
    """The commands of one line, its comment removed."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    is_fed = False
    for word in [*lexer, ";"]:
        if word == "<":
            is_fed = True
        elif word not in {"|", "&", "&&", ";"}:
            words.append(word)
        elif words:
            yield Command(tuple(words), is_fed, is_background=word == "&", is_last=is_last)
            words, is_fed = [], word == "|"


def commands(text: str) -> list[Command]:
    """Those of the fenced shell blocks, comments and `$ ` removed, continued lines joined."""
    found = []
    for block in re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", text, flags=re.M | re.S):
        lines = [line for line in block.replace("\\\n", " ").splitlines() if line.partition("#")[0].strip()]
        for number, line in enumerate(lines, 1):
            found += of_line(line, is_last=number == len(lines))
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))


@cache
def help_of(*verb: str) -> str | None:
    """What `rocstar VERB --help` prints, or None when there is no such verb."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        try:
            code = main([*verb, "--help"])
        except SystemExit as ended:  # of argparse
            code = ended.code
    return None if code else printed.getvalue()


def fault(command: Command) -> str | None:
    """What is wrong with a command of the README, or None."""
    words = list(command.words)
    while words and re.match(r"^\w+=", words[0]):
        words.pop(0)
    program, rest = words[0].rpartition("/")[2], words[1:]
    for word in words:
        if FILE_NAME.match(word) and not word.startswith(("/", "runs/")) and not (ROOT / word).exists():
            return f"{word} does not exist"
    if program == "make":
        unknown = {w for w in rest if "=" not in w and not w.startswith("-")} - make_targets()
        return f"no make target {sorted(unknown)}" if unknown else None
    if program == "rocstar":
        return verb_fault(rest)
    if program in {"python", "torchrun"}:
        if "-m" in rest and (module := rest[rest.index("-m") + 1]).startswith("rocstar."):
            path = ROOT.joinpath(*module.split(".")[1:])
            if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
                return f"no module {module}"
        return None
    return None if program in PLAIN_COMMANDS else f"the test does not know the command {program}"


def verb_fault(words: list[str]) -> str | None:
    """`rocstar` with these words: is the verb there, and does its help name every option?"""
    verb = tuple(words[:2] if words[:1] in (["sandbox"], ["data"]) else words[:1])
    text = help_of(*verb)
    if text is None:
        return f"no verb {' '.join(verb)}"
    options = {w.partition("=")[0] for w in words if w.startswith("--") and "." not in w.partition("=")[0]}
    missing = sorted(option for option in options if option not in text)
    return f"rocstar {' '.join(verb)} has no {missing}" if missing else None


def paste_fault(command: Command) -> str | None:
    """How a command would eat the lines that were pasted behind it, or None."""
    if command.program == "sudo" and not command.is_last:
        return "a password is asked for, and what follows in the block is lost"
    if command.words[:3] == ("sudo", "apt-get", "install") and "-y" not in command.words:
        return "apt-get asks whether to go on"
    if "-" in command.words[1:] and not command.is_fed:
        return "it reads standard input"
    if runs_until_stopped(command) and not (command.is_background or command.is_last):
        return "it runs until it is stopped"
    return None


def runs_until_stopped(command: Command) -> bool:
    """What waits for Ctrl-C, or for a person: a terminal throws away what was pasted behind it."""
    match command.words:
        case ("rocstar", "sandbox", verb, *_):
            return verb in {"serve", "worker", "mcp"}
        case ("rocstar", "view", *_):
            return "--export" not in command.words
        case ("rocstar", "chat", *_):
            return "--prompt" not in command.words and not command.is_fed
        case ("rocstar", "serve", *_):
            return True
        case _:
            return False


def missing_programs(found: list[Command]) -> Iterator[str]:
    """Commands that come before the line that installs them."""
    there = set(ALWAYS_THERE)
    is_built = False
    for command in found:
        words = [word for word in command.words if word != "sudo"]
        if words[:2] == ["apt-get", "install"]:
            there |= {word for word in words[2:] if not word.startswith("-")}
        elif words[0] == "make" and {"quickstart", "setup"} & set(words):
            is_built = True
        elif words == [".", ".venv/bin/activate"] and is_built:
            there |= IN_VENV
        if words[0].rpartition("/")[2] not in there:
            yield str(command)


@pytest.mark.parametrize("page", [README, *GUIDES], ids=lambda page: page.name)
def test_every_command_of_a_page_is_real(page: Path) -> None:
    faults = {str(c): f for c in commands(page.read_text(encoding="utf-8")) if (f := fault(c))}
    assert not faults


def test_blocks_can_be_pasted() -> None:
    found = [(page.name, command) for page in (README, *GUIDES) for command in commands(page.read_text("utf-8"))]
    assert not {f"{name}: {command}": fault for name, command in found if (fault := paste_fault(command))}


def test_every_command_comes_behind_what_installs_it() -> None:
    assert not [*missing_programs(commands(README.read_text()))]
