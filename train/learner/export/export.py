"""`rocstar export CHECKPOINT|RUN --out DIR`: the target is looked at first, and it appears whole or never."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rocstar.train.learner.export.gguf_file import check_gguf, write_gguf
from rocstar.train.learner.export.hf_folder import write_hf
from rocstar.train.learner.export.model_card import model_card
from rocstar.train.learner.export.source import ExportSource, find_source
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.targets import check_folder


def export(path: Path, out: Path, *, form: str = "hf") -> Path:
    """Write the export and return its folder. ConfigError leaves nothing written."""
    check_folder(out)
    source = find_source(path)
    if form == "gguf":
        check_gguf(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as partial:
            folder = Path(partial) / out.name
            folder.mkdir()
            if form == "gguf":
                _write_gguf_folder(source, folder)
            else:
                write_hf(source, folder)
            if out.exists():
                out.rmdir()
            folder.rename(out)
    except OSError as error:
        raise ConfigError(
            f"--out {str(out)!r} cannot be written ({error.strerror}); choose another with space for it"
        ) from None
    return out


def _write_gguf_folder(source: ExportSource, folder: Path) -> None:
    file = folder / f"{source.name}-BF16.gguf"
    count = write_gguf(source, file)
    text = model_card(
        source,
        checked=f"{count} tensors, each under its name of llama.cpp's package gguf",
        tried="nothing yet; `rocstar import-gguf` reads such a file, which the tests of rocstar show",
        not_tried="llama.cpp",
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
