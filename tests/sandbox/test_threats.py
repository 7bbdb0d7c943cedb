"""What a result holds of floods and forged endings, and root without Landlock. What hostile programs try, and what
holds each of them: sandbox/attacks/."""

import asyncio
import os

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Status

from .. import needs
from ..patience import PATIENCE_S
from .conftest import Run

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_is_cut_and_then_stopped(run: Run, stream: str) -> None:
    endless = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    flood = await asyncio.wait_for(run(endless, output_bytes=10_000, wall_s=300), PATIENCE_S)
    assert flood.status is Status.OUTPUT_LIMIT and getattr(flood, f"{stream}_truncated")
    assert getattr(flood, stream).count("x") == 10_000
    more = await run(f"import sys; sys.{stream}.write('a' + 'x' * 9_999 + 'z')", output_bytes=10_000)
    assert more.status is Status.OK and getattr(more, f"{stream}_truncated")
    kept = "a" + "x" * 4_999 + "\n... [1 bytes cut] ...\n" + "x" * 4_999 + "z"
    assert getattr(more, stream) == kept
    exact = await run(f"import sys; sys.{stream}.write('x' * 10_000)", output_bytes=10_000)
    assert (len(getattr(exact, stream)), getattr(exact, f"{stream}_truncated")) == (10_000, False)


async def test_a_flood_of_value_is_stopped(run: Run) -> None:
    cut = await run("'x' * 20_000", output_bytes=10_000)
    assert cut.value == "'" + "x" * 4_999 + "\n... [10002 bytes cut] ...\n" + "x" * 4_999 + "'"
    flood = await run("'x' * 10**7", output_bytes=10_000)
    assert flood.status is Status.OK and flood.value is not None and len(flood.value) <= 10_000
    written = await run("import os\nos.write(3, b'x' * 10**7)", output_bytes=10_000)
    assert written.status is Status.OUTPUT_LIMIT


@pytest.mark.parametrize(
    ("code", "status", "value"),
    [
        ("import os; os.write(3, b'forged'); 1", Status.OK, "forged1"),
        ("import os; os.write(3, b'F\\0\\0\\0\\0'); 1 / 0", Status.ERROR, "F\0\0\0\0"),
        ("import os; os.close(3); 5", Status.ERROR, None),
        ("import os; os.closerange(0, 100); os._exit(0)", Status.OK, None),
        ("import os; os._exit(86)", Status.MEMORY_LIMIT, None),
        ("import os; os._exit(125)", Status.ERROR, None),
    ],
)
async def test_forging_changes_no_ending_for_the_better(
    run: Run, code: str, status: Status, value: str | None
) -> None:
    result = await run(code)
    assert (result.status, result.value) == (status, value)


PEEK = """
import os
def peek(path):
    try:
        with open(path, 'rb') as file:
            return 'read' if file.read(1) else 'empty'
    except OSError as error:
        return type(error).__name__
"""


@pytest.mark.privileged
async def test_root_keeps_no_power_even_without_landlock() -> None:
    if os.geteuid() != 0:
        needs.ROOT.skip()
    code = PEEK + f"[peek('/proc/{os.getpid()}/environ'), os.getgroups(), os.getuid()]"
    async with SandboxPool(without=("landlock", "namespaces"), allow_no_isolation=True) as pool:
        result = await pool.run(ExecRequest(code=code))
        shadow = await pool.run(ExecRequest(code=PEEK + "peek('/etc/shadow')"))
    assert result.value is not None and result.value.startswith("['PermissionError'")
    if "uid" in result.isolation:
        assert "[], 10000" in result.value
        assert shadow.value == "'PermissionError'"
