"""The texts of a policy that knows the due calls. Pure.

Task.meta --gold-------> one text, or one for each turn of a conversation   the judge accepts it
          --near_miss--> the same with one error                            the judge rejects it
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.evaluation.benchmarks.bfcl import simulated
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call, Due, Language, find_function
from rocstar.train.evaluation.benchmarks.bfcl.entries import is_multi_turn

NO_CALL = "None of the functions can do that."


def gold(task: Task) -> str | Sequence[str]:
    """Return texts of the policy by turn, or one text if the user has one message."""
    category = task.meta["category"]
    if is_multi_turn(category):
        return _conversation(_due_messages(task))
    if category.endswith("irrelevance"):
        return NO_CALL
    if category.endswith("relevance"):
        return format_calls([(task.meta["described"][0]["name"], {})])
    return format_calls([due_call(one, task.meta) for one in task.meta["due"]])


def near_miss(task: Task) -> str | Sequence[str]:
    """Return the gold with one error: a superfluous or missing call, an unknown parameter, or in a
    conversation the last message without its calls."""
    category = task.meta["category"]
    if is_multi_turn(category):
        messages = _due_messages(task)
        last = max(place for place, calls in enumerate(messages) if calls)
        messages[last] = []
        return _conversation(messages)
    if category.endswith("irrelevance"):
        return format_calls([(task.meta["described"][0]["name"] if task.meta["described"] else "help", {})])
    if category.endswith("relevance"):
        return NO_CALL
    name, arguments = due_call(task.meta["due"][-1], task.meta)
    rest = [due_call(one, task.meta) for one in task.meta["due"][:-1]]
    return format_calls([*rest, (name, {**arguments, "no_such_parameter": 1})])


def format_calls(calls: Sequence[Call]) -> str:
    """Return calls in the format that the engine parses."""
    bodies = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def due_call(one: Due, meta: Mapping[str, Any]) -> Call:
    """Return a due call with the first possible value of each parameter that may not be omitted."""
    ((name, possible),) = one.items()
    function = find_function(meta["described"], name)
    described = function["parameters"]["properties"]
    arguments = {}
    for parameter, values in possible.items():
        if "" in values and parameter not in function["parameters"]["required"]:
            continue
        if real := [value for value in values if value != ""]:
            arguments[parameter] = argument(real[0], described.get(parameter, {}), Language(meta["language"]))
        else:
            arguments[parameter] = ""
    return function["name"], arguments


def argument(value: Any, described: Mapping[str, Any], language: Language) -> Any:
    """Return a possible value in the policy's form: as JSON, or as the text of a literal."""
    kind = described.get("type", "any")
    if language is Language.python:
        return first_values(value) if kind in ("dict", "array", "tuple") else value
    item = described.get("items", {}).get("type")
    return (java_literal if language is Language.java else javascript_literal)(value, kind, item)


def first_values(value: Any) -> Any:
    """Return an object of possible values: {key: [values]} becomes {key: value}, one level deep as in the
    rule."""
    if isinstance(value, Mapping):
        lists = {key: inner if isinstance(inner, list) else [inner] for key, inner in value.items()}
        real = {key: [one for one in inner if one != ""] for key, inner in lists.items()}
        return {key: inner[0] for key, inner in real.items() if inner}
    if isinstance(value, list):
        return [first_values(one) if isinstance(one, Mapping) else one for one in value]
    return value


def java_literal(value: Any, kind: str, item: str | None = None) -> str:
    """Return the literal of a value of type `kind`."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        puts = " ".join(f'put("{key}", {_quoted(inner)});' for key, inner in first_values(value).items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    if isinstance(value, list):
        bare = item in ("any", "char") or (item == "String" and kind == "Array")
        elements = ", ".join(
            one if bare and isinstance(one, str) else java_literal(_quoted(one), item or "any") for one in value
        )
        if kind == "ArrayList":
            return f"new ArrayList<>(Arrays.asList({elements}))" if value else "new ArrayList<>()"
        return f"new Object[]{{{elements}}}"
    text = _quoted(value)
    return text + {"long": "L", "float": "f"}.get(kind, "")


def javascript_literal(value: Any, kind: str, item: str | None = None) -> str:
    """Return the literal of a value of type `kind`."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(first_values(value))
    if isinstance(value, list):
        return f"[{', '.join(one if item == 'any' else _quoted(one) for one in value)}]"
    return _quoted(value) + ("n" if kind == "Bigint" else "")


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _due_messages(task: Task) -> list[list[Call]]:
    """Return the due calls of each user message, with the names of their positional arguments."""
    lines = [line for text in task.meta["follow_ups"] for line in text.split("\n")]
    added = [json.loads(line) for line in lines if line.startswith('{"type": "function"')]
    functions = [tool["function"] for tool in [*task.meta["functions"], *added]]
    parameters = {f["name"]: list(f["parameters"]["properties"]) for f in functions}
    messages: list[list[Call]] = []
    for message in task.meta["due"]:
        parsed = [simulated.parse_call(text) for text in message]
        messages.append(
            [
                (name, dict(zip(parameters[name], positional, strict=False)) | named)
                for name, positional, named in parsed
            ]
        )
    return messages


def _conversation(messages: Sequence[Sequence[Call]]) -> list[str]:
    """Return the texts of the policy: each call alone, and a text without a call after each message."""
    return [text for calls in messages for text in [*(format_calls([call]) for call in calls), NO_CALL]]
