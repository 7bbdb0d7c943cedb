"""What a child's memory is made of, and what a zygote's stays: `python_memory.h` and `compact.h` in csrc/."""

import sys
from pathlib import Path

import pytest

from rocstar.sandbox.pool.pool import SandboxPool

from .conftest import Run

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHURN = Path(__file__).with_name("churn.txt").read_text(encoding="utf-8")
"""Objects of all sizes, a few at first, then watched, then more than lie together."""

PLACES = """
kept = [object(), *(bytes(size) for size in (2, 20, 60, 100, 150, 200, 250, 300, 350, 400))]
sorted(map(id, kept))
"""

CHANGED = """
import sys
made = object()
parts = [(one, one.__dict__, one.buffer, one.buffer.raw) for one in (sys.stdout, sys.stderr)]
sorted(map(id, [made, *parts[0], *parts[1], sys.modules['__main__'].__dict__]))
"""

LEFT = """LEFT = 1
import linecache, sys
(sorted(name for name in globals() if not name.startswith("__")), linecache.getline("<cell>", 1).strip())
"""


async def test_objects_are_whole_wherever_they_lie(run: Run) -> None:
    result = await run(CHURN)
    assert (result.value, result.stderr) == ("'whole'", "")


async def test_objects_of_a_session_are_whole_after_a_branch(pool: SandboxPool) -> None:
    session = await pool.open_session()
    await session.run("kept = [[i] * (i % 60) for i in range(400)]")
    branch = await session.branch()
    for one in (session, branch):
        await one.run("kept = kept[::2] + [bytes(i % 500) for i in range(2000)]; del kept[:50]")
    seen = [await one.run("sum(map(len, kept))") for one in (session, branch)]
    assert seen[0].value == seen[1].value is not None
    await session.close()
    await branch.close()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons make objects their own way")
async def test_the_first_objects_of_all_sizes_lie_together(run: Run) -> None:
    result = await run(PLACES)
    places = eval(result.value or "")
    assert places[-1] - places[0] < 64 << 10


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons make objects their own way")
async def test_what_every_program_changes_lies_with_its_first_objects(run: Run) -> None:
    """Anything of it that lies elsewhere is a page more that is copied for each child."""
    result = await run(CHANGED)
    places = eval(result.value or "")
    assert places[-1] - places[0] < 64 << 10


async def test_nothing_of_the_last_rehearsal_is_left(run: Run) -> None:
    result = await run(LEFT)
    assert (result.stdout, result.stderr) == ("", "")
    assert result.value == "(['LEFT', 'linecache', 'sys'], 'LEFT = 1')"


async def test_a_zygote_keeps_its_huge_pages(pool: SandboxPool) -> None:
    """One that writes between its children has them split, and its table copied, entry by entry, for each."""

    async def forks() -> None:
        for _ in range(20):
            assert (await pool.run("print(1)")).stdout == "1\n"

    await forks()
    before = huge_kb(pool.zygotes["stdlib"][-1])
    if before == 0:
        pytest.skip("this machine has no huge pages for it")
    await forks()
    whole = huge_kb(pool.zygotes["stdlib"][-1], of="[heap]")
    assert huge_kb(pool.zygotes["stdlib"][-1]) == before and whole > 0


def huge_kb(pid: int, of: str = "") -> int:
    """How much of its memory, or of mappings whose line ends so, lies in huge pages."""
    found, chosen = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            chosen = line.endswith(of)
        elif chosen and line.startswith("AnonHugePages:"):
            found += int(line.split()[1])
    return found
