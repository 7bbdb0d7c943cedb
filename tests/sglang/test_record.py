"""The exchanges that the fake is held against, played on the real server; SGLANG_RECORD=1 keeps them."""

import json
import os
from pathlib import Path
from typing import Any

from rocstar.engine.inference.sglang.replica import server_command
from tests.fakes.sglang.exchanges import CAPACITY, CPU_ARGS, record

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "engine" / "recordings" / "sglang"


def shape(value: Any) -> Any:
    """Names and kinds: tokens, times and ids differ from run to run."""
    match value:
        case dict():
            return {key: shape(inner) for key, inner in value.items()}
        case list():
            return [shape(value[0])] if value else []
        case bool() | str() | None:
            return type(value).__name__
        case _:
            return "number"


async def test_the_real_server_still_answers_as_recorded(python: Path, tmp_path: Path) -> None:
    keep = os.environ.get("SGLANG_RECORD") == "1"
    out = RECORDINGS if keep else tmp_path
    args = {**CPU_ARGS, "max-total-tokens": CAPACITY}
    log = ROOT / "runs/test-sglang/logs/record.log"
    before = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in RECORDINGS.glob("*.json")}
    await record(lambda model, port: server_command(python, model, port, args), out, log)
    names = sorted(path.name for path in out.glob("*.json"))
    assert names == sorted(before)
    for name in names:
        new, old = json.loads((out / name).read_text(encoding="utf-8")), before[name]
        assert new["status"] == old["status"], name
        assert shape(new["response"]) == shape(old["response"]), name
        if name.partition("_")[2].startswith("checksums"):
            assert new["response"]["ranks"][0]["checksums"] == old["response"]["ranks"][0]["checksums"], name
