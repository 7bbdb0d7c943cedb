"""Agents without a model, and orders for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_SCHEMA, PYTHON_TOOL, PythonTool
from rocstar.engine.types import Attempt, Outcome, Scored, Task
from rocstar.sandbox.testing import ok
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits
from tests.fakes.scripted_policy import ByteTokenizer, Reply, Request, ScriptedPolicy

TOKENIZER = ByteTokenizer()
CHAT = ChatFormat(TOKENIZER, load_template("compact", None), [PYTHON_SCHEMA])
CALL = '<tool_call>\n{"name": "%s", "arguments": {"code": "%d", "input": ""}}\n</tool_call>'


class Sandbox:
    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        await asyncio.sleep(0)
        return ok(request.code)


class Judge:
    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        if "bug" in attempt.text:
            raise KeyError("a bug")
        return Scored(reward=float(attempt.task.answer in attempt.text), method="fake")


def calls_once(request: Request) -> Reply:
    """One call of the tool, then an answer; both are of the request's noise."""
    delay_s = 1.0 + request.seed % 7
    if request.turn == 1:
        return Reply(text=CALL % (PYTHON_TOOL, request.seed % 1000), delay_s=delay_s)
    return Reply(text=f"{request.seed % 5}", delay_s=delay_s)


@pytest.fixture
def agent_of() -> Callable[..., Agent]:
    def make(script: Any = calls_once) -> Agent:
        tools = Dispatcher(
            tools=[PythonTool(limits=Limits(), flavour="stdlib", style="brief")],
            sandbox=Sandbox(),
            max_parallel_calls=2,
        )
        return Agent(
            inference=ScriptedPolicy(script, TOKENIZER),
            chat=CHAT,
            tools=tools,
            judge=Judge(),
            limits=RolloutLimits(max_response_tokens=1, max_turns=1, max_tool_tokens=1, timeout_s=1.0),
            sampling=Sampling(),
        )

    return make


@pytest.fixture
def order_of() -> Callable[..., GroupOrder]:
    def make(name: str, *, size: int = 3, timeout_s: float = 100.0, meta: Any = None) -> GroupOrder:
        return GroupOrder(
            task=Task(id=name, source="s", question=f"what is {name}?", answer="4", meta=meta or {}),
            step=1,
            seed=7,
            size=size,
            limits=RolloutLimits(
                max_response_tokens=4000, max_turns=8, max_tool_tokens=64, timeout_s=timeout_s
            ),
            temperature=1.0,
        )

    return make
