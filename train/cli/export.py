"""`rocstar export`: a checkpoint as others load it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rocstar.train.cli.arguments import new_verb, nothing_more


def add(verbs: Any) -> None:
    parser = new_verb(
        verbs, "export", "a checkpoint as others load it: a Hugging Face folder, or a GGUF file"
    )
    text = "a checkpoint, a Hugging Face folder, or a run: its last complete checkpoint"
    parser.add_argument("source", type=Path, metavar="CHECKPOINT|RUN", help=text)
    text = "a folder that is new or empty; it appears whole or not at all"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=text)
    text = "hf: safetensors in bfloat16 with tokenizer, template and card; gguf: one file for llama.cpp"
    parser.add_argument("--format", choices=("hf", "gguf"), default="hf", help=text)
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    from rocstar.train.learner.export.export import export

    nothing_more(rest, "see `rocstar export --help`")
    print(f"wrote {export(options.source, options.out, form=options.format)}")
    return 0
