"""A kernel's module with a planted error."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def load_planted(module: Any, planted: Mapping[str, tuple[str, str]], kind: str, folder: Path) -> Any:
    """Return a copy of the module in which the second text of `planted[kind]` replaces the first.

    Each kind has its own file name: triton reads the text of a function back through it.
    """
    source = Path(module.__file__)
    old, new = planted[kind]
    text = source.read_text()
    assert old in text, "the planted text must occur"
    path = folder / f"{source.stem}_{list(planted).index(kind)}.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(f"planted_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    wrong = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = wrong  # dataclasses look their module up
    spec.loader.exec_module(wrong)
    return wrong
