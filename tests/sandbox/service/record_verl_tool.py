"""Records what verl-tool's agent loop and its SandboxFusion tool send, from their source: none packages it.

    git clone https://github.com/TIGER-AI-Lab/verl-tool CHECKOUT && \\
        python -m tests.sandbox.service.record_verl_tool CHECKOUT

Only the functions that send are compiled out of the checkout and run here, against a server that answers
anything: the modules around them want torch, ray and a model. Nothing of them is copied. Needs requests.
"""

import ast
import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp

from .record_sandbox_fusion_client import recording_server

RECORDING = Path(__file__).parent / "recordings" / "verl_tool.json"


class Never:
    """No picture is sent here."""


LOOP = "verl_tool/agent_loop/verltool_agent_loop.py"
TOOL = "verl_tool/servers/tools/sandbox_fusion.py"
SENT_HEADERS = ("Content-Type", "Accept")
ACTIONS = (
    "I shall compute it.\n```python\nprint(6 * 7)\n```",
    "<python>print(input())</python>",
    "```python\nx = 1\n```\nand then\n```python\nprint(x)\n```\n```output",
    "Nothing to run.",
)


def taken(path: Path, wanted: set[str], names: dict[str, Any]) -> dict[str, Any]:
    """The functions and methods of these names, and the module's patterns, with `names` around them."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name in wanted]
    missing = wanted - {node.name for node in functions}
    assert not missing, f"{path} has no {missing}"
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    patterns = [node for node in assigned if "re.compile" in ast.unparse(node)]
    for node in functions:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    exec(compile(ast.Module([*patterns, *functions], []), str(path), "exec"), names)
    return names


def main() -> None:
    import requests

    checkout = Path(sys.argv[1])
    with recording_server({"observations": ["x"], "dones": [0], "valids": [1]}) as (where, seen):
        asyncio.run(loop_sends(checkout, where))
        tool = taken(checkout / TOOL, {"_execute_in_sandbox"}, {"requests": requests})
        for language, code in (("python", "print(6 * 7)"), ("bash", "echo $((6 * 7))")):
            tool["_execute_in_sandbox"](SimpleNamespace(sandbox_url=where, timeout=10), code, language)
    for one in seen:
        one["headers"] = {name: one["headers"][name] for name in SENT_HEADERS if name in one["headers"]}
    commit = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    version = subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip()
    recorded = {"client": f"verl-tool at commit {version}", "requests": seen}
    RECORDING.write_text(json.dumps(recorded, indent=1) + "\n")


async def loop_sends(checkout: Path, where: str) -> None:
    import numpy

    names: dict[str, Any] = {
        **{module.__name__: module for module in (asyncio, aiohttp, json, logging, os, time, uuid, re)},
        **{"np": numpy, "Image": SimpleNamespace(Image=Never), "MAX_OBS_LENGTH": 1 << 20},
        "logger": logging.getLogger("verl-tool"),
    }
    wanted = {"sanitize_request", "_aiohttp_request", "send_batch_requests_async"}
    found = taken(checkout / LOOP, {*wanted, "interact_with_tool_server", "close_traj_tool_threads"}, names)
    async with aiohttp.ClientSession() as http:
        settings = SimpleNamespace(
            tool_call_max_retries=0, tool_call_timeout=10, tool_server_url=f"{where}/get_observation"
        )

        async def session(timeout_s: float) -> aiohttp.ClientSession:
            return http

        loop = SimpleNamespace(agent_config=settings, get_session=session)
        for name in ("_aiohttp_request", "send_batch_requests_async"):
            setattr(loop, name, found[name].__get__(loop))
        send = found["interact_with_tool_server"]
        for number, action in enumerate(ACTIONS):
            extra = {"stdin": "9", "ground_truth": "42"} if number == 1 else None
            await send(loop, f"{number:032x}", action, True, extra_fields=extra, is_last_step=number == 3)
        await send(loop, f"{0:032x}", "The answer is 42.", False)
        await found["close_traj_tool_threads"](loop, f"{1:032x}")


if __name__ == "__main__":
    main()
