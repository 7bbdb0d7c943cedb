"""A package in the form of `bfcl_eval`, with questions and simulated classes made up."""

import json
from pathlib import Path
from typing import Any

from rocstar.train.evaluation.benchmarks.bfcl.entries import FUNCTION_FILES, MODULES, SIZES

LAMP = Path(__file__).with_name("lamp.txt").read_text(encoding="utf-8")


def described(name: str, *parameters: str, required: int = 0, kind: str = "string") -> dict[str, Any]:
    properties = {p: {"type": kind, "description": p} for p in parameters}
    inner = {"type": "dict", "properties": properties, "required": list(parameters[:required])}
    return {"name": name, "description": f"It is {name}.", "parameters": inner}


FUNCTIONS = [
    described("light", "lamp", "hours", required=1),
    described("douse", "lamp", required=1),
    described("lamps"),
]


JAVA = described("light", "lamp", "hours", required=1, kind="String")


def said(*texts: str) -> list[list[dict[str, str]]]:
    """User messages; an empty text is one that functions are given in."""
    return [[{"role": "user", "content": text}] if text else [] for text in texts]


def question(name: str, functions: list[Any] | None = None) -> dict[str, Any]:
    return {"id": name, "question": said(f"{name}?"), "function": functions or [FUNCTIONS[0]]}


def conversation(name: str, *texts: str, **more: Any) -> dict[str, Any]:
    config = {"TicketAPI": {"lit": ["porch"]}}
    return {"id": name, "question": said(*texts), "initial_config": config, "involved_classes": ["TicketAPI"], **more}


DUE = [["light(lamp='red')"], ["light('blue', hours=2)", "douse(lamp='red')"]]
ROWS: dict[str, list[dict[str, Any]]] = {
    "multi_turn_base": [conversation("multi_turn_base_0", "Light red.", "Blue instead, two hours.")],
    "multi_turn_long_context": [conversation("multi_turn_long_context_0", "Light red.", "Blue instead.")],
    "multi_turn_miss_func": [
        conversation("multi_turn_miss_func_0", "Light red.", "", missed_function={"1": ["light"]})
    ],
    "multi_turn_miss_param": [conversation("multi_turn_miss_param_0", "Light it.", "I mean red.")],
}
DUE_ROWS: dict[str, Any] = {
    "multi_turn_base": DUE,
    "multi_turn_long_context": DUE,
    "multi_turn_miss_func": [[], ["light(lamp='red')"]],
    "multi_turn_miss_param": [[], ["light(lamp='red')"]],
}
SINGLE_DUE = [{"light": {"lamp": ["red"], "hours": ["2", ""]}}]


def make_package(folder: Path) -> Path:
    """Write it below `folder` and return its path."""
    package = folder / "bfcl_eval"
    answers, functions, modules = (
        package / "data" / "possible_answer",
        package / "data" / "multi_turn_func_doc",
        package / MODULES,
    )
    for made in (answers, functions, modules):
        made.mkdir(parents=True)
    for category in SIZES:
        shown = [JAVA] if category in ("java", "javascript") else None
        rows = ROWS.get(category, [question(f"{category}_0", shown)])
        write(package / "data" / f"BFCL_v3_{category}.json", rows)
        if not category.endswith("relevance"):
            due = DUE_ROWS.get(category, SINGLE_DUE)
            write(answers / f"BFCL_v3_{category}.json", [{"id": rows[0]["id"], "ground_truth": due}])
    for name, file in FUNCTION_FILES.items():
        write(functions / f"{file}.json", FUNCTIONS if name == "TicketAPI" else [])
        (modules / f"{file}.py").write_text(LAMP if name == "TicketAPI" else "")
    return package


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows) + ("\n" if rows else ""))
