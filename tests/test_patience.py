"""No test gives up on what must happen sooner than a busy machine may need for it."""

import re
from pathlib import Path

import pytest

from .patience import PATIENCE_S

HERE = Path(__file__).parent
LEAST_S = 300.0
WAITS = re.compile(
    r"asyncio\.timeout\((?P<a>[\d.]+)\)|wait_for\(.*, (?P<b>[\d.]+)\)|[(, ]timeout=(?P<c>[\d.]+)[,)]"
    r"|^(?:PATIENCE|DEADLINE)_S(?:: Final)? = (?P<d>[\d.]+)$|\.(?:join|wait)(?:\(|, )(?P<e>\d[\d.]*)\)",
    re.MULTILINE,
)
WANTED = re.compile(r"asyncio\.wait\(\[.*|pytest\.raises\(TimeoutError.*\n.*")
"""Who looks whether something has *not* happened waits a moment, as does a limit that is to be reached."""


def too_short(text: str) -> list[str]:
    """The waits of a source that end before `LEAST_S`, but for those of 0, which do not wait."""
    found = WAITS.finditer(WANTED.sub("", text))
    return [wait[0] for wait in found if 0.0 < float(next(filter(None, wait.groups()))) < LEAST_S]


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("async with asyncio.timeout(20), door:", True),
        ("await asyncio.wait_for(first.wait(), 20)", True),
        ("subprocess.run(command, timeout=10, check=True)", True),
        ("thread.join(30)", True),
        ("await asyncio.to_thread(process.wait, 20)", True),
        ("DEADLINE_S = 20.0", True),
        ("async with asyncio.timeout(300):", False),
        ("async with asyncio.timeout(0):", False),
        ("async with asyncio.timeout(PATIENCE_S):", False),
        ("await asyncio.wait([publishing], timeout=0.05)", False),
        ("with pytest.raises(TimeoutError):\n    async with asyncio.timeout(5):", False),
    ],
)
def test_a_short_wait_is_seen(line: str, short: bool) -> None:
    assert bool(too_short(line)) is short


def test_no_test_is_impatient() -> None:
    sources = [path for path in HERE.rglob("*.py") if not path.name.startswith("record_")]
    found = {str(path): too_short(path.read_text()) for path in sources if path != Path(__file__)}
    impatient = {name: waits for name, waits in found.items() if waits}
    assert impatient == {}, "wait for PATIENCE_S of tests/patience.py"
    assert PATIENCE_S >= LEAST_S
