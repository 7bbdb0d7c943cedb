"""Every command, path and link of the README is real."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PLAIN_COMMANDS = {"apt-get", "cd", "curl", "export", "git", "pip", "python3", "sudo", "."}
"""Commands that are not ours; of these only the file names are checked."""

FILE_NAME = re.compile(r"^[\w./-]+\.(toml|py|md|svg|png|txt|cpp|h)$")


def commands(text: str) -> list[str]:
    """The command lines of the fenced shell blocks, comments and `$ ` removed, continued lines joined."""
    found = []
    for block in re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", text, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            command = shlex.join(shlex.split(line.removeprefix("$ "), comments=True))
            if command:
                found.append(command)
    return found


def links(text: str) -> list[str]:
    """Relative link and picture targets."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    return [t.partition("#")[0] for t in targets if not t.startswith(("http", "#", "mailto:"))]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))


@cache
def help_of(*verb: str) -> str | None:
    """What `rocstar VERB --help` prints, or None when there is no such verb."""
    code = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    result = subprocess.run(
        [sys.executable, "-c", code, *verb, "--help"],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    return result.stdout if result.returncode == 0 else None


def fault(command: str) -> str | None:
    """What is wrong with a command of the README, or None."""
    words = shlex.split(command)
    while words and re.match(r"^\w+=", words[0]):
        words.pop(0)
    program, rest = Path(words[0]).name, words[1:]
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
    verb = tuple(words[:2] if words[:1] == ["sandbox"] else words[:1])
    text = help_of(*verb)
    if text is None:
        return f"no verb {' '.join(verb)}"
    options = {w.partition("=")[0] for w in words if w.startswith("--") and "." not in w.partition("=")[0]}
    missing = sorted(option for option in options if option not in text)
    return f"rocstar {' '.join(verb)} has no {missing}" if missing else None


def test_readme_exists_and_shows_the_two_commands() -> None:
    assert README.exists(), "README.md is missing"
    found = commands(README.read_text())
    assert "make quickstart" in found
    assert "make test" in found


def test_every_command_is_real() -> None:
    faults = {c: f for c in commands(README.read_text()) if (f := fault(c))}
    assert not faults


def test_every_link_leads_somewhere() -> None:
    assert not [t for t in links(README.read_text()) if not (ROOT / t).exists()]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("make nonsense", "no make target"),
        ("rocstar train recipes/none.toml", "does not exist"),
        ("rocstar nonsense", "no verb"),
        ("rocstar train recipes/quickstart.toml --nonsense", "has no"),
        (".venv/bin/python -m rocstar.train.nonsense", "no module"),
        ("nonsense --help", "does not know"),
    ],
)
def test_a_false_command_is_noticed(command: str, complaint: str) -> None:
    assert complaint in (fault(command) or "")


def test_commands_are_found() -> None:
    text = "```bash\n$ make test  # quick\nA=1 make \\\n  setup\n```\n\n```python\nimport os\n```\n"
    assert commands(text) == ["make test", "A=1 make setup"]
