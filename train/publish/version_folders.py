"""Weights on their way to servers: one Hugging Face folder per version in the run directory.

RUN/weights/v3.partial -> v3/      the newest KEPT stay, so that a server that comes back finds its own
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

KEPT = 2
Save = Callable[[Path, torch.dtype], None]
"""Writes weights in a type into a folder."""


class VersionFolders:
    """Invariant: a folder `vN` is complete, and holds exactly the weights of version N.

    Args:
        root: the folder of all versions; files of an earlier run are removed.
        start: a folder of the model, whose other files (configuration, tokenizer) every version gets.
        dtype: the dtype of served weights.
    """

    def __init__(self, root: Path, start: Path, dtype: torch.dtype) -> None:
        self._root, self._start, self._dtype = root, start, dtype
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in self._folders():
            shutil.rmtree(folder)

    def folder(self, version: int) -> Path:
        return self._root / f"v{version}"

    def fill(self, version: int, save: Save) -> Path:
        """The folder of `version`, whose weights `save` writes. OSError where there is no room."""
        partial = self.folder(version).with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path in self._start.iterdir():  # all but the weights and a checkpoint's state
            if path.is_file() and path.suffix not in (".safetensors", ".bin") and "index" not in path.name:
                link(path, partial / path.name)
        save(partial, self._dtype)
        partial.rename(self.folder(version))
        for old in self._folders()[:-KEPT]:
            shutil.rmtree(old)
        return self.folder(version)

    def _folders(self) -> list[Path]:
        found = [p for p in self._root.iterdir() if re.fullmatch(r"v\d+(\.partial)?", p.name)]
        return sorted(found, key=lambda path: int(path.stem[1:]))


def link(source: Path, target: Path) -> None:
    """The same file under another name: it stays when the other goes."""
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copy2(source, target)
