"""How this `rocstar` is called from the shell that a person reads its lines in."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def own_command() -> str:
    """`rocstar` where the PATH leads to this one; else its path, which works without the environment."""
    script = Path(sys.executable).with_name("rocstar")
    found = shutil.which("rocstar")
    if not script.exists() or (found is not None and os.path.samefile(found, script)):
        return "rocstar"
    with_folder = script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if with_folder else script))
