"""Agents without a model, and orders for them."""

from collections.abc import Callable
from typing import Any

import pytest

from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.types import Task
from tests.fakes.agents import make_agent, tool_call
from tests.fakes.scripted_policy import Reply, Request


def calls_once(request: Request) -> Reply:
    """One call of the tool, then an answer; both are of the request's noise."""
    delay_s = 1.0 + request.seed % 7
    if request.turn == 1:
        return Reply(text=tool_call(str(request.seed % 1000)), delay_s=delay_s)
    return Reply(text=f"{request.seed % 5}", delay_s=delay_s)


@pytest.fixture
def agent_of() -> Callable[..., Agent]:
    return lambda script=calls_once: make_agent(script)


@pytest.fixture
def order_of() -> Callable[..., GroupOrder]:
    def make(name: str, *, size: int = 3, timeout_s: float = 100.0, meta: Any = None) -> GroupOrder:
        return GroupOrder(
            task=Task(id=name, source="s", question=f"what is {name}?", answer="4", meta=meta or {}),
            step=1,
            seed=7,
            size=size,
            limits=RolloutLimits(max_response_tokens=4000, max_turns=8, max_tool_tokens=64, timeout_s=timeout_s),
            temperature=1.0,
        )

    return make
