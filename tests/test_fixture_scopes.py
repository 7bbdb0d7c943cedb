"""What many tests share and lies in the session's one workshop is made once in a session.

A process that takes over tests of another may come back to a file of tests that it has left: what belongs to
that file alone (`scope="module"`) is then made again, and a folder by the same name is there already.
"""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NARROW = ("module", "class", "package")


def made_again(source: str) -> list[str]:
    """Fixtures that last longer than a test and less than the session, and write into the workshop."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scopes = [
                word.value.value
                for call in node.decorator_list
                if isinstance(call, ast.Call)
                for word in call.keywords
                if word.arg == "scope" and isinstance(word.value, ast.Constant)
            ]
            asked = [argument.arg for argument in node.args.args]
            if "workshop" in asked and set(scopes) & set(NARROW):
                found.append(node.name)
    return found


@pytest.mark.parametrize(
    ("scope", "asked", "found"),
    [
        ('(scope="module")', "workshop", True),
        ('(scope="class")', "workshop, finished", True),
        ('(scope="session")', "workshop", False),
        ("", "workshop", False),
        ('(scope="module")', "tmp_path_factory", False),
    ],
)
def test_what_is_made_again_is_seen(scope: str, asked: str, found: bool) -> None:
    source = f"@pytest.fixture{scope}\ndef run({asked}):\n    ...\n"
    assert bool(made_again(source)) is found


def test_nothing_is_made_again_in_the_workshop() -> None:
    sources = {str(path.relative_to(HERE)): made_again(path.read_text()) for path in HERE.rglob("*.py")}
    assert {name: fixtures for name, fixtures in sources.items() if fixtures} == {}
