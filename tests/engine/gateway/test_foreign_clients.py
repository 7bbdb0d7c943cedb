"""Foreign agents of public packages, unchanged, in sessions of the gateway."""

import os
from pathlib import Path

import pytest

from tests import needs
from tests.engine.gateway.foreign_clients import CLIENTS, run_in_gateway
from tests.engine.gateway.fuzzed_clients import check_columns
from tests.engine.gateway.test_dialects import REWRITES

FOLDERS = os.environ.get("ROCSTAR_AGENTS", "")


@needs.AGENTS.unless(bool(FOLDERS))
@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_completes_a_tool_task_and_all_that_it_sampled_trains(name: str) -> None:
    venv, _, npm = FOLDERS.partition(":")
    status, output, session, policy = await run_in_gateway(name, Path(venv), Path(npm))
    assert status == 0, output
    columns = session.graph.columns()
    assert check_columns(columns, policy) == len(policy.log) == len(CLIENTS[name].script)
    assert len(columns.starts) == (2 if name in REWRITES else 1)
