"""The data files that rocstar ships, on local copies of what they name: what could be built, and what not.

    python benchmarks/shipped_data.py --data FOLDER --out benchmarks/results/shipped_data.json

FOLDER has the same rows under other names and fields: LOCAL says which. They are written as the hub's data
sets are, below a folder that stands in for the hub, and each file is built of the sources that are there, all
of its other lines as they are. A source that is not there is left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compact_results import compact
from data_build import built
from quickstart_seeds import machine

from rocstar.train.data.build_config import BUILDS, shipped_builds

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Local:
    """A file that has rows of a hub data set."""

    file: str
    at: str
    """Where the hub's copy has them, below OWNER/NAME."""
    row: Callable[[Row], Row | None]
    """As the hub's row; None for one that is not of this data set."""
    note: str = ""


def renamed(**names: str) -> Callable[[Row], Row]:
    return lambda row: {new: row[old] for new, old in names.items()}


def dapo(row: Row) -> Row | None:
    return {"prompt": row["problem"], "solution": row["answer"]} if row["lang"] == "en" else None


def sharegpt(row: Row) -> Row | None:
    """A conversation of Glaive's as its ShareGPT form has it."""
    if "glaive" not in row["source"]:
        return None
    roles = {"user": "human", "assistant": "gpt", "tool": "observation"}
    system = [m["content"] for m in row["messages"] if m["role"] == "system"]
    said = []
    for message in row["messages"]:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        for call in calls:
            value = {"name": call["name"], "arguments": json.loads(call["arguments"])}
            said.append({"from": "function_call", "value": json.dumps(value)})
        if message["role"] in roles and not calls:
            said.append({"from": roles[message["role"]], "value": message["content"]})
    tools = json.dumps([tool.get("function", tool) for tool in row.get("tools") or ()])
    return {"conversations": said, "tools": tools} | ({"system": system[0]} if system else {})


AS_SET = renamed(id="id", problem="problem", answer="answer")
LOCAL: Mapping[str, Local] = {
    "open-r1/DAPO-Math-17k-Processed": Local(
        file="dapo_math_17k.jsonl", at="en/train", row=dapo, note="another copy, without its duplicates"
    ),
    "HuggingFaceH4/aime_2024": Local(file="aime2024.jsonl", at="train", row=AS_SET),
    "math-ai/aime25": Local(file="aime2025.jsonl", at="test", row=AS_SET),
    "HuggingFaceH4/MATH-500": Local(file="math500.jsonl", at="test", row=AS_SET),
    "hiyouga/glaive-function-calling-v2-sharegpt": Local(
        file="sft_toolcall.jsonl", at="train", row=sharegpt, note="300 rows, written back into their form"
    ),
}


def laid_out(data: Path, hub: Path) -> None:
    """Write the local rows below `hub` as the hub's data sets are."""
    for name, local in LOCAL.items():
        path = hub / name / f"{local.at}.jsonl"
        path.parent.mkdir(parents=True)
        with path.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in _rows(data / local.file, local.row))


def _rows(path: Path, form: Callable[[Row], Row | None]) -> Iterator[Row]:
    with path.open() as file:
        yield from (row for line in file if (row := form(json.loads(line))) is not None)


def is_there(source: str) -> bool:
    return source.removeprefix("hub:").partition(":")[0] in LOCAL


def of_what_is_there(name: str) -> tuple[str, dict[str, Any]]:
    """A shipped file without the sources that are not there, and what these are."""
    raw = tomllib.loads((BUILDS / f"{name}.toml").read_text())
    against = raw.get("overlap", {}).get("against", [])
    told = {
        "left_out": [one["name"] for one in raw["sources"] if not is_there(one["source"])],
        "sets_left_out": [one["source"] for one in against if not is_there(one["source"])],
    }
    raw["sources"] = [one for one in raw["sources"] if is_there(one["source"])]
    if against:
        raw["overlap"]["against"] = [one for one in against if is_there(one["source"])]
    return as_toml(raw), told


def as_toml(raw: Mapping[str, Any]) -> str:
    """TOML whose values are written as JSON, inline tables for what lies deeper."""
    return "".join(f"{key} = {inline(value)}\n" for key, value in raw.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        hub = Path(scratch) / "hub"
        laid_out(options.data, hub)
        os.environ["ROCSTAR_DATA_DIR"] = str(hub)
        for name in shipped_builds():
            config, told = of_what_is_there(name)
            found[name] = told | built(config, Path(scratch), name)
    notes = {name: local.note for name, local in LOCAL.items() if local.note}
    command = "python benchmarks/shipped_data.py --data FOLDER"
    about = {"machine": machine(), "command": command, "local_copies": sorted(LOCAL), "notes": notes}
    text = compact(json.loads(json.dumps(about | {"builds": found})))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
