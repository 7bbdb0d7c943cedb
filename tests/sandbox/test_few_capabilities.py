"""Root of a container that was left without some of its capabilities."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, Status

from .. import needs

WRITES = "import os\nopen('a', 'w').write('x')\nprint(os.getuid(), os.listdir())"


@pytest.mark.parametrize("lacks", ["chown", "dac_override", "kill", "setuid", "chown,dac_override,kill"])
async def test_root_that_lacks_some_does_without_users_of_programs(lacks: str, tmp_path: Path) -> None:
    """It tried, and could then not make, clear or end what it had given away: no call had a result."""
    if os.geteuid() != 0:
        needs.ROOT.skip()
    needs.commands("setpriv")
    pool = SandboxPool(max_live=2)
    options = pool._keeper.options
    program = tmp_path / "supervisor"
    dropped = ",".join(f"-{name}" for name in lacks.split(","))
    words = ["setpriv", "--bounding-set", dropped, "--inh-caps", dropped, options.program]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    pool._keeper.options = replace(options, program=str(program))
    async with pool:
        for _ in range(2):
            result = await pool.run(ExecRequest(code=WRITES))
            assert (result.status, result.stderr) == (Status.OK, "")
            own_user = "uid" in pool.isolation.split("+")  # which a user namespace may give back
            assert result.stdout.endswith(" ['a']\n") and result.stdout.startswith("0 ") != own_user
        ended = await pool.run(ExecRequest(code="while True: pass", limits=Limits(wall_s=0.2)))
        assert ended.status is Status.TIMEOUT
