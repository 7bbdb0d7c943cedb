"""Rules for the source of tests: long waits, shared folders once in a session, skips by tests/needs.py."""

import ast
import re
from pathlib import Path

import pytest

from .patience import PATIENCE_S

HERE = Path(__file__).parent
SOURCES = {path: path.read_text(encoding="utf-8") for path in HERE.rglob("*.py") if path != Path(__file__)}
LEAST_S = 300.0
WAITS = re.compile(
    r"asyncio\.timeout\((?P<a>[\d.]+)\)|wait_for\(.*, (?P<b>[\d.]+)\)|[(, ]timeout=(?P<c>[\d.]+)[,)]"
    r"|^(?:PATIENCE|DEADLINE)_S(?:: Final)? = (?P<d>[\d.]+)$|\.(?:join|wait)(?:\(|, )(?P<e>\d[\d.]*)\)",
    re.MULTILINE,
)
EXPECTED = re.compile(r"asyncio\.wait\(\[.*|pytest\.raises\(TimeoutError.*\n.*")
"""A wait for what must not happen, and a limit that is to be reached, may be short."""
SKIPS = re.compile(r"importorskip\(|skip(if)?\([^)]*(apt-get|pip install|redis|root|installed)")


def short_waits(path: Path, text: str) -> list[str]:
    """Waits that a busy machine may not meet. One of 0 s does not wait."""
    if path.name.startswith("record_"):
        return []
    found = WAITS.finditer(EXPECTED.sub("", text))
    return [wait[0] for wait in found if 0.0 < float(next(filter(None, wait.groups()))) < LEAST_S]


def repeated_fixtures(path: Path, text: str) -> list[str]:
    """Fixtures that write into the session's workshop and last less than the session.

    A process that comes back to a file makes them again, and finds their folder there.
    """
    if "workshop" not in text:
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = [word for call in node.decorator_list if isinstance(call, ast.Call) for word in call.keywords]
            is_narrow = any(word.arg == "scope" and ast.unparse(word.value) != "'session'" for word in words)
            if is_narrow and "workshop" in [argument.arg for argument in node.args.args]:
                found.append(node.name)
    return found


def skips_by_hand(path: Path, text: str) -> list[str]:
    """Skips that name a remedy and are no `Need`: the last line of a run would count each apart."""
    return [] if path.name == "needs.py" else [match[0] for match in SKIPS.finditer(text)]


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        (short_waits, "async with asyncio.timeout(20), door:"),
        (short_waits, "thread.join(30)"),
        (repeated_fixtures, '@pytest.fixture(scope="module")\ndef run(workshop): ...'),
        (skips_by_hand, 'pytest.skip("apt-get install x")'),
    ],
)
def test_no_source_breaks_a_rule(rule: object, broken: str) -> None:
    assert callable(rule) and rule(HERE / "test_it.py", broken)
    found = {str(path): places for path, text in SOURCES.items() if (places := rule(path, text))}
    assert found == {}
    assert PATIENCE_S >= LEAST_S
