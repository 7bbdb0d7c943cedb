"""The program that runs the simulated classes: one request per line of stdin, one response per line of
stdout.

    python -I simulated.py PACKAGE         the folder `bfcl_eval`, which need not be installed

    {"classes": {NAME: MODULE}, "config": {NAME: ..}, "long": bool, "messages": [[[FUNCTION, {..}], ..], ..],
     "due": [["function(x=1)", ..], ..] or null}
    -> {"messages": [[[[TEXT, IS_ERROR], ..], [TEXT of a due call, ..], IS_SAME_STATE], ..]}

It imports the standard library only and runs in its own process, which its parent kills if a call does not
return. Each request starts with new objects, so a response depends on its request only. A function is looked
up by its name among the public methods and called with its arguments; no text of the policy is evaluated.
"""

import ast
import copy
import importlib
import inspect
import json
import resource
import sys
import types
from itertools import zip_longest
from typing import Any

REFUSED = {"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"}
STATELESS = {"MathAPI"}
MEMORY_BYTES = 2 << 30


class SimulatedObjects:
    """The objects of one side: the policy's, or those of the due calls."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.objects: dict[str, Any] = {}
        self.methods: dict[str, Any] = {}
        for name, module in request["classes"].items():
            made = getattr(importlib.import_module(module), name)()
            if name not in STATELESS:
                config = copy.deepcopy(request["config"].get(name, {}))
                made._load_scenario(config, long_context=request["long"])
            self.objects[name] = made
            found = inspect.getmembers(made, predicate=inspect.ismethod)
            self.methods |= {method: bound for method, bound in found if not method.startswith("_")}

    def call(self, name: str, positional: list[Any], named: dict[str, Any]) -> tuple[str, bool]:
        """Return the text of a function's result, and True if it raised."""
        try:
            if name in REFUSED:
                raise PermissionError(f"Function call {name} is not allowed.")
            if name not in self.methods:
                raise NameError(f"name {name!r} is not defined")
            return said(self.methods[name](*positional, **named)), False
        except Exception as error:  # the foreign classes may raise anything; the policy reads the message
            return f"Error during execution: {error}", True

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the public attributes of every object."""
        return {
            name: {key: value for key, value in vars(made).items() if not key.startswith("_")}
            for name, made in self.objects.items()
        }


def said(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Parse a due call, written as Python."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r} is not a call")
    named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return call.func.id, [ast.literal_eval(one) for one in call.args], named


def play(request: dict[str, Any]) -> dict[str, Any]:
    policy, truth = SimulatedObjects(request), SimulatedObjects(request)
    outcomes = []
    for calls, texts in zip_longest(request["messages"], request["due"] or (), fillvalue=()):
        results = [policy.call(name, [], arguments) for name, arguments in calls]
        due = [truth.call(*parse_call(text))[0] for text in texts]
        state = policy.state()
        is_same_state = request["due"] is None or all(
            key in state[name] and bool(state[name][key] == value)
            for name, attributes in truth.state().items()
            for key, value in attributes.items()
        )
        outcomes.append((results, due, is_same_state))
    return {"messages": outcomes}


def main() -> None:
    package = types.ModuleType("bfcl_eval")
    package.__path__ = [sys.argv[1]]
    sys.modules[package.__name__] = package
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = sys.stdout
    sys.stdout = sys.stderr  # keep the prints of the classes out of the responses
    for line in iter(sys.stdin.readline, ""):
        out.write(json.dumps(play(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
