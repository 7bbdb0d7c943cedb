"""The text of each token, by the tokenizer of a run's weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rocstar.train.record.run_directory import complete_checkpoints

TOKENIZER: Final = "tokenizer.json"


class TokenTextsOfRun:
    """Loads the tokenizer of the run's last checkpoint at the first use.

    It is None without a checkpoint or without the package tokenizers: a record has only ids.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._tokenizer: Any = None
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str] | None:
        if self._tokenizer is None and not self._load():
            return None
        for token in ids:
            if token not in self._known:
                self._known[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return [self._known[token] for token in ids]

    def _load(self) -> bool:
        found = [path / TOKENIZER for path in complete_checkpoints(self._directory)]
        path = next((path for path in reversed(found) if path.is_file()), None)
        if path is None or path == self._path:
            return False
        self._path = path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return False
        self._tokenizer = Tokenizer.from_file(str(path))
        return True
