"""A name stands for one thing: who greps for a class of the sandbox finds it and no other."""

import ast
from collections import defaultdict
from pathlib import Path

import rocstar.sandbox

FOLDER = Path(rocstar.sandbox.__file__).parent


def test_no_class_name_occurs_twice() -> None:
    places = defaultdict(list)
    for path in sorted(FOLDER.rglob("*.py")):
        if "attacks" in path.relative_to(FOLDER).parts[:-1]:
            continue  # programs, each on its own
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(FOLDER)}:{node.lineno}")
    assert len(places) > 50
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
