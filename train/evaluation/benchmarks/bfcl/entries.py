"""The published files of BFCL v3 as tasks.

    PACKAGE/data/BFCL_v3_CATEGORY.json             questions, functions   } -> Task: messages, and
    PACKAGE/data/possible_answer/BFCL_v3_..json    the due calls          }    `meta` with the functions
    PACKAGE/data/multi_turn_func_doc/*.json        further functions      }    and the inputs of the rule

    function descriptions --> JSON schemas --> the prompt, as chat templates show tools
                                           --> the user message that adds functions later

PACKAGE is the folder `bfcl_eval` as its wheel installs it; the simulated classes for conversations are in it
too (simulation.py). Nothing of it is imported here.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.evaluation.benchmarks.benchmark import LOCAL
from rocstar.train.evaluation.benchmarks.bfcl.calls import TABLES, Language, find_function, types_of
from rocstar.train.recipe.errors import ConfigError

VERSION = "2025.8.6.2"
INSTALL = f"pip install --no-deps --target bfcl bfcl-eval=={VERSION}"
SIZES, FUNCTION_FILES, _SCHEMA_TYPES = (TABLES[name] for name in ("sizes", "function_files", "schema_types"))
"""Questions by category, files of the simulated classes, and JSON Schema's types by those of the rows."""

MODULES = Path("eval_checker", "multi_turn_eval", "func_source_code")
Row = Mapping[str, Any]


def is_multi_turn(category: str) -> bool:
    """True for conversations with several user messages, in which calls are executed."""
    return category.startswith("multi_turn")


def load_tasks(path: Path) -> list[Task]:
    """Return all tasks, category by category.

    Args:
        path: the folder `bfcl_eval`, its parent, or its `data`.

    Raises:
        ConfigError: a file is missing or has another form.
    """
    for package in (path / "bfcl_eval", path, path.parent):
        if (package / "data" / "BFCL_v3_simple.json").is_file():
            return [task for category in SIZES for task in _tasks(package.resolve(), category)]
    raise ConfigError(
        f"bfcl_v3: {str(path)!r} holds no bfcl_eval/data/BFCL_v3_simple.json. `{INSTALL}` makes the folder "
        "'bfcl' with it."
    )


def _tasks(package: Path, category: str) -> Iterator[Task]:
    path = package / "data" / f"BFCL_v3_{category}.json"
    rows, due, documents, sources = _rows(path), {}, {}, {}
    if not category.endswith("relevance"):  # there the rule is only whether a call is made
        answers = package / "data" / "possible_answer" / path.name
        due = {str(row.get("id")): row.get("ground_truth") for row in _rows(answers)}
    if is_multi_turn(category):
        for name, file in FUNCTION_FILES.items():
            documents[name] = _rows(package / "data" / "multi_turn_func_doc" / f"{file}.json")
            source = _text(package / MODULES / f"{file}.py")
            sources[name] = hashlib.sha256(source.encode()).hexdigest()
    for row in rows:
        try:
            if is_multi_turn(category):
                yield _conversation(row, due[row["id"]], category, documents, sources, package)
            elif category.endswith("relevance"):
                yield _question(row, [], category)
            else:
                yield _question(row, due[row["id"]], category)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"bfcl_v3: {path}: {row.get('id', 'a row')!r} is not of the form of BFCL v3, or the file "
                f"of that name in possible_answer lacks it ({type(error).__name__}: {error}); `{INSTALL}` "
                "makes a copy that is"
            ) from None


def _question(row: Row, due: Any, category: str) -> Task:
    language = Language(category) if category in ("java", "javascript") else Language.python
    (messages,) = row["question"]
    for one in due:
        function = find_function(row["function"], next(iter(one)))
        for described in function["parameters"]["properties"].values():
            types_of(described, language)  # a KeyError for a type that the rule does not support
    meta = {
        "category": category,
        "functions": schemas(row["function"], language),
        "described": row["function"],
        "due": due,
        "language": language.value,
    }
    return _task(row, messages, meta)


def _conversation(
    row: Row, due: Any, category: str, documents: Mapping[str, list[Row]], sources: Mapping[str, str], package: Path
) -> Task:
    classes = row["involved_classes"]
    functions = [function for name in classes for function in documents[name]]
    held: dict[int, list[Row]] = {}
    for turn, names in row.get("missed_function", {}).items():
        held[int(turn)] = [f for f in functions if f["name"] in names]
        functions = [f for f in functions if f["name"] not in names]
    first, *later = row["question"]
    follow_ups = []
    for k, messages in enumerate(later, start=1):
        if k in held:
            tools = schemas(held[k], Language.python)
            lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
            follow_ups.append("\n".join(["<tools>", *lines, "</tools>", MORE_FUNCTIONS]))
        else:
            (message,) = messages
            follow_ups.append(str(message["content"]))
    meta = {
        "category": category,
        "functions": schemas(functions, Language.python),
        "due": due,
        "follow_ups": follow_ups,
        "classes": {name: sources[name] for name in classes},
        "config": row["initial_config"],
        LOCAL: {"package": str(package)},
    }
    return _task(row, first, meta)


def _task(row: Row, messages: Any, meta: Mapping[str, Any]) -> Task:
    *context, last = messages
    if last["role"] != "user":
        raise TypeError("the last message is not the user's")
    answer = json.dumps(meta.get("due", ()), ensure_ascii=False)
    return Task(
        id=row["id"], source="bfcl_v3", question=last["content"], answer=answer, meta=meta, context=tuple(context)
    )


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"bfcl_v3: {path}, line {number} is not JSON: {error}; `{INSTALL}`") from None
        if not isinstance(row, dict):
            raise ConfigError(f"bfcl_v3: {path}, line {number} is not a JSON object; `{INSTALL}`")
        rows.append(row)
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"bfcl_v3: cannot read {path}: {error}; `{INSTALL}`") from None


MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
"""The user's message when withheld functions are added (BFCL v3, `default_prompts.py`)."""

_HINTS = {Language.python: "Python 3", Language.java: "Java 8 SDK", Language.javascript: "JavaScript"}
_NAMES = {Language.java: "Java", Language.javascript: "JavaScript"}


def schemas(functions: Iterable[Mapping[str, Any]], language: Language) -> list[dict[str, Any]]:
    """Return the functions in the form of chat templates."""
    return [{"type": "function", "function": _schema(function, language)} for function in functions]


def _schema(function: Mapping[str, Any], language: Language) -> dict[str, Any]:
    hint = f" Note that the provided function is in {_HINTS[language]} syntax."
    parameters = function["parameters"]
    properties = {
        name: _property(described) if language is Language.python else _literal(described, language)
        for name, described in parameters["properties"].items()
    }
    return {
        **function,
        "description": function["description"] + hint,
        "parameters": {**parameters, "type": "object", "properties": properties},
    }


def _property(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter with the types of JSON schema, at any depth."""
    shown = dict(described)
    kind = described.get("type", "any")
    shown["type"] = _SCHEMA_TYPES.get(kind, kind)
    if isinstance(inner := described.get("properties"), Mapping):
        shown["properties"] = {name: _property(one) for name, one in inner.items()}
    if isinstance(item := described.get("items"), Mapping):
        shown["items"] = _property(item)
    return shown


def _literal(described: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """Return a parameter that is written as the text of a literal."""
    kind, name = described["type"], _NAMES[language]
    shown = {key: value for key, value in described.items() if key not in ("items", "properties")}
    if kind == "any":
        note = f" This parameter can be of any type of {name} object in string representation."
    else:
        note = f" This is {name} {kind} type parameter in string representation."
    if "items" in described:
        item = described["items"]["type"]
        note += f" The list elements are of type {item}; they are not in string representation."
    if "properties" in described:
        entries = json.dumps(described["properties"])
        note += f" The dictionary entries have the following schema; they are not in string representation. {entries}"
    return {**shown, "type": "string", "description": described.get("description", "") + note}
