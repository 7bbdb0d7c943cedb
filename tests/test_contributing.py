"""CONTRIBUTING, SECURITY and the hosted workflow name commands, paths and targets that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MADE = {".venv"}
"""Paths that come into being."""


def faults(text: str) -> list[str]:
    """Make targets and paths in backticks and shell blocks that are not there."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = [
        f"make {name}" for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE) if name not in targets
    ]
    words = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:pytest|bash) (\S+)", text, re.MULTILINE)
    for word in " ".join(words).split():
        path = word.partition("::")[0]
        if re.fullmatch(r"[\w.][\w./-]*/[\w./-]+", path) and path not in MADE and not (ROOT / path).exists():
            wrong.append(path)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


def test_the_hosted_workflow_runs_the_one_script_with_pinned_actions() -> None:
    assert WORKFLOWS
    for workflow in WORKFLOWS:
        text = workflow.read_text(encoding="utf-8")
        assert "run: bash .ci/run\n" in text and "permissions:\n  contents: read\n" in text
        uses = re.findall(r"uses: (.*)", text)
        assert uses
        for action in uses:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
