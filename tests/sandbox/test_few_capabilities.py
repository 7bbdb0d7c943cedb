"""Root of a container that was left without some of its capabilities."""

import asyncio
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, Status

from .. import needs
from ..patience import PATIENCE_S

SCRATCH_BYTES = 1 << 20  # there is not room for two
WRITES = "import os\nopen(input(), 'w').write('x' * 600_000)\nprint(os.getuid(), os.listdir())"
SLEEPS = "import time\ntime.sleep(1e6)"


@pytest.mark.parametrize("lacks", ["chown", "dac_override", "kill", "setuid", "chown,dac_override,kill"])
async def test_root_that_lacks_some_does_without_users_of_programs(lacks: str, tmp_path: Path) -> None:
    """It tried, and could then not make, clear or end what it had given away: no call had a result."""
    if os.geteuid() != 0:
        needs.ROOT.skip()
    needs.commands("setpriv")
    pool = SandboxPool(max_live=2)
    options = pool._restarter.options
    program = tmp_path / "supervisor"
    dropped = ",".join(f"-{name}" for name in lacks.split(","))
    words = ["setpriv", "--bounding-set", dropped, "--inh-caps", dropped, options.program]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    pool._restarter.options = replace(options, program=str(program), scratch_bytes=SCRATCH_BYTES)
    async with pool:
        for name in ("a", "b"):
            result = await pool.run(ExecRequest(code=WRITES, stdin=name))
            assert (result.status, result.stderr) == (Status.OK, "")
            own_user = "uid" in pool.isolation.split("+")  # which a user namespace may give back
            assert result.stdout.endswith(f" ['{name}']\n") and result.stdout.startswith("0 ") != own_user
        request = ExecRequest(code=SLEEPS, limits=Limits(wall_s=0.2))
        assert (await asyncio.wait_for(pool.run(request), PATIENCE_S)).status is Status.TIMEOUT
