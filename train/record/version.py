"""The versions of installed packages, and the commit of a checkout."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
"""The repository's root, if this is a checkout."""
GIT_S = 10.0


def version_of(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(checkout: Path) -> dict[str, Any]:
    """Return the commit of a checkout, and True if its files differ from it; None if unknown."""
    unknown = {"commit": None, "dirty": None}
    # An installed package may be inside another project's repository.
    if not (checkout / ".git").exists():
        return unknown
    commit = _output(checkout, "rev-parse", "HEAD")
    if commit is None:
        return unknown
    changes = _output(checkout, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _output(checkout: Path, *arguments: str) -> str | None:
    """Return the output of git; None if git is missing, refuses or hangs."""
    command = ["git", "-C", str(checkout), *arguments]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()


def commit(checkout: Path = CHECKOUT) -> str | None:
    """Return the commit of the checkout, with `-modified` if a file differs; None if there is none."""
    state = git_state(checkout)
    if state["commit"] is None:
        return None
    return f"{state['commit'][:12]}{'-modified' if state['dirty'] else ''}"
