"""Outputs for every question of BFCL v3, made from its due calls: right ones, nearly right ones, and no calls
at all.

They are recorded once and scored twice: benchmarks/bfcl_against_upstream.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from rocstar.engine.types import Task
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call, Due, Language, described_as
from rocstar.train.evaluation.benchmarks.bfcl.gold import argument, due_call, parameters_of, read, written

PROSE = "None of the functions can do that; please tell me more."
UNKNOWN: Call = ("no_such_function", {"x": 1})


def texts(task: Task, rng: Random) -> Iterator[tuple[str, str]]:
    """Kinds and texts for a question of one user message."""
    functions, due = task.meta["described"], task.meta["due"]
    yield from no_calls()
    if task.meta["category"].endswith("relevance"):
        calls: list[Call] = [
            (f["name"], dict.fromkeys(f["parameters"]["properties"], "x")) for f in functions
        ]
        calls = calls or [UNKNOWN]
        yield "called", written(calls[:1])
        yield "all called", written(calls)
        yield "no arguments", written([(calls[0][0], {})])
        yield from broken(calls)
        return
    gold = [due_call(one, task.meta) for one in due]
    yield "due", written(gold)
    yield "due, other values", written([drawn_call(one, task.meta, rng) for one in due])
    yield "due, nothing optional", written([required(call, functions) for call in gold])
    yield "reversed", written(gold[::-1])
    yield "rotated", written(gold[1:] + gold[:1])
    yield "one twice", written([*gold, gold[0]])
    yield "one less", written(gold[1:])
    yield "first only", written(gold[:1])
    yield "one unknown beside", written([*gold, UNKNOWN])
    yield "one renamed", written([(gold[0][0] + "_", gold[0][1]), *gold[1:]])
    yield "one parameter more", written([(gold[0][0], {**gold[0][1], "zzz": 1}), *gold[1:]])
    yield "no arguments", written([(name, {}) for name, _ in gold])
    yield "other spelling", written([(name, {k: spelled(v) for k, v in a.items()}) for name, a in gold])
    yield "floats", written([(name, {k: floats(v) for k, v in a.items()}) for name, a in gold])
    yield "texts", written([(name, {k: as_text(v) for k, v in a.items()}) for name, a in gold])
    yield "in a list", written([(name, {k: [v] for k, v in a.items()}) for name, a in gold])
    yield from broken(gold)
    for _ in range(8):
        yield "mutated", written(mutated(gold, rng))


def no_calls() -> Iterator[tuple[str, str]]:
    yield "empty", ""
    yield "prose", PROSE
    yield "a list", "<tool_call>\n[]\n</tool_call>"
    yield "an empty object", "<tool_call>\n{}\n</tool_call>"
    yield "tags alone", "<tool_call>\n\n</tool_call>"


def broken(calls: Sequence[Call]) -> Iterator[tuple[str, str]]:
    """Calls that are no JSON, or no calls."""
    whole = written(calls)
    yield "cut", whole[: len(whole) // 2]
    yield "single quotes", whole.replace('"', "'")
    yield "a brace less", whole.replace("}\n</tool_call>", "\n</tool_call>")
    yield "no tags", whole.replace("<tool_call>", "").replace("</tool_call>", "")
    name, arguments = calls[0]
    yield "arguments as text", tagged({"name": name, "arguments": json.dumps(arguments)})
    yield "arguments missing", tagged({"name": name})
    yield "prose around", f"{PROSE}\n{whole}\n{PROSE}"
    yield "one broken", whole + "\n<tool_call>\n{\n</tool_call>"


def tagged(value: Any) -> str:
    return f"<tool_call>\n{json.dumps(value)}\n</tool_call>"


def drawn_call(one: Due, meta: Mapping[str, Any], rng: Random) -> Call:
    """A call with drawn possible values; what may be left out is so at times."""
    ((name, possible),) = one.items()
    function = described_as(meta["described"], name)
    described, language = function["parameters"]["properties"], Language(meta["language"])
    arguments = {}
    for parameter, values in possible.items():
        real = [value for value in values if value != ""]
        if real and not ("" in values and rng.random() < 0.5):
            arguments[parameter] = argument(rng.choice(real), described.get(parameter, {}), language)
    return function["name"], arguments


def required(call: Call, functions: list[Any]) -> Call:
    name, arguments = call
    needed = next((f for f in functions if f["name"] == name), functions[0])["parameters"].get("required", [])
    return name, {k: v for k, v in arguments.items() if k in needed}


def spelled(value: Any) -> Any:
    """Other case, spaces and punctuation, which the rule does not look at."""
    if isinstance(value, str):
        return value.upper().replace(" ", " -_").replace(",", "") + "."
    if isinstance(value, list):
        return [spelled(v) for v in value]
    return {k: spelled(v) for k, v in value.items()} if isinstance(value, dict) else value


def floats(value: Any) -> Any:
    if isinstance(value, list):
        return [floats(v) for v in value]
    return float(value) if type(value) is int else int(value) if isinstance(value, float) else value


def as_text(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value)


def mutated(calls: Sequence[Call], rng: Random) -> Sequence[Call]:
    """One or two changes at drawn places."""
    changed = [(name, dict(arguments)) for name, arguments in calls]
    for _ in range(rng.choice((1, 1, 2))):
        k = rng.randrange(len(changed))
        name, arguments = changed[k]
        change = rng.choice(("value", "value", "value", "drop", "swap", "order"))
        if change == "order":
            rng.shuffle(changed)
        elif change == "swap" and len(changed) > 1:
            other = rng.randrange(len(changed))
            changed[k], changed[other] = (name, changed[other][1]), (changed[other][0], arguments)
        elif arguments:
            parameter = rng.choice(sorted(arguments))
            if change == "drop":
                del arguments[parameter]
            else:
                arguments[parameter] = other_value(arguments[parameter], rng)
    return list(changed)


def other_value(value: Any, rng: Random) -> Any:
    if isinstance(value, bool):
        return rng.choice((not value, int(value), str(value), None))
    if isinstance(value, int | float):
        return rng.choice((value + 1, -value, float(value), str(value), value + 0.5, [value], bool(value)))
    if isinstance(value, str):
        return rng.choice(
            (value + "x", value[:-1], spelled(value), "", 1, [value], value.replace("'", '"'), None)
        )
    if isinstance(value, list):
        inner = [other_value(v, rng) if rng.random() < 0.4 else v for v in value]
        return rng.choice(
            (value[::-1], value[:-1], [*value, *value[:1]], inner, inner, [], [value], {"a": 1})
        )
    if isinstance(value, dict):
        other = {k: other_value(v, rng) if rng.random() < 0.5 else v for k, v in value.items()}
        fewer = dict(list(value.items())[:-1])
        return rng.choice((other, other, fewer, {**value, "zzz": 1}, [value], {}))
    return 0


def conversations(task: Task, rng: Random) -> Iterator[tuple[str, list[list[str]]]]:
    """Kinds and texts of a task of several user messages: for each its steps, the last without a call."""
    parameters = parameters_of(task.meta)
    gold = [[read(text, parameters) for text in message] for message in task.meta["due"]]

    def told(messages: Sequence[Sequence[Call]], *, together: bool = False) -> list[list[str]]:
        return [[*([written(m)] if together and m else [written([c]) for c in m]), PROSE] for m in messages]

    yield "due", told(gold)
    yield "due, one step", told(gold, together=True)
    yield "empty", [[""] for _ in gold]
    yield "prose", told([[] for _ in gold])
    yield "reversed", told([message[::-1] for message in gold])
    yield "all at first", told([[c for m in gold for c in m], *[[] for _ in gold[1:]]])
    yield "all at last", told([*[[] for _ in gold[1:]], [c for m in gold for c in m]])
    yield "one message less", told(gold[:-1])
    yield "each twice", told([[c for c in m for _ in range(2)] for m in gold])
    yield "an unknown before", told([[UNKNOWN, *m] for m in gold])
    yield "broken beside", [[*steps[:-1], "<tool_call>\n{\n</tool_call>"] for steps in told(gold)]
    yield (
        "broken within",
        [
            ([f"{steps[0]}\n<tool_call>\n{{\n</tool_call>"] if len(steps) > 1 else []) + steps[1:]
            for steps in told(gold)
        ],
    )
    yield "called without need", told([m or [calls_of(gold, rng)] for m in gold])
    for _ in range(6):
        yield "mutated", told(mutated_messages(gold, rng))


def mutated_messages(gold: Sequence[Sequence[Call]], rng: Random) -> Sequence[Sequence[Call]]:
    messages = [list(message) for message in gold]
    k = rng.choice([k for k, message in enumerate(messages) if message])
    change = rng.choice(("value", "value", "value", "drop", "repeat", "borrow", "rename", "shuffle"))
    place = rng.randrange(len(messages[k]))
    name, arguments = messages[k][place]
    if change == "value":
        (messages[k][place],) = mutated([(name, arguments)], rng)
    elif change == "drop":
        del messages[k][place]
    elif change == "repeat":
        messages[k].insert(place, (name, arguments))
    elif change == "borrow":
        messages[k].append(calls_of(gold, rng))
    elif change == "rename":
        messages[k][place] = (rng.choice(("ls", "pwd", "remove", "_load_scenario", name + "s")), arguments)
    else:
        rng.shuffle(messages[k])
    return messages


def calls_of(messages: Sequence[Sequence[Call]], rng: Random) -> Call:
    return rng.choice([call for message in messages for call in message])
