"""The version of the installed package, and the commit of a checkout."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 5.0


def version() -> str:
    """Return `0.2.0`, or `unknown` if rocstar is on the path without being installed."""
    try:
        return importlib.metadata.version("rocstar")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def commit(checkout: Path = CHECKOUT) -> str | None:
    """Return the commit of the checkout, with `-modified` if a file differs; None if there is none."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            [*command, "--dirty=-modified"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def describe() -> str:
    """Return the output of `rocstar --version`."""
    found = commit()
    return f"rocstar {version()}" + (f" (commit {found})" if found else "")
