"""Agents without a model."""

import json
from typing import Any

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.tools.python import PYTHON_SCHEMA, PYTHON_TOOL, PythonTool
from rocstar.engine.types import Attempt, Outcome, Scored, Task
from rocstar.sandbox.types import Limits
from tests.fakes.sandbox import FakeSandbox, ok
from tests.fakes.scripted_policy import ByteTokenizer, ScriptedPolicy

TOKENIZER = ByteTokenizer()
CHAT = ChatFormat(TOKENIZER, load_template("compact", None), [PYTHON_SCHEMA])
JUPYTER_SCHEMA = JupyterTool(limits=Limits(), flavour="stdlib", style="plain").schema
TASK = Task(id="t", source="s", question="2+2?", answer="4")


class FakeJudge:
    """Score 1 for a complete text with the task's answer in it; raise KeyError for one with "bug" in it."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        if "bug" in attempt.text:
            raise KeyError("a bug")
        is_correct = attempt.task.answer in attempt.text and not attempt.is_truncated
        return Scored(reward=float(is_correct), method="fake")


def tool_call(code: str, name: str = PYTHON_TOOL) -> str:
    """Return the text of a call of the tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'code': code}})}</tool_call>"


def python_tools(sandbox: Any = None, *, max_parallel_calls: int = 2) -> Dispatcher:
    """Return the Python tool over a sandbox; by default a program prints itself."""
    return Dispatcher(
        tools=[PythonTool(limits=Limits(), flavour="stdlib", style="brief")],
        sandbox=sandbox or FakeSandbox(lambda request: ok(request.code)),
        max_parallel_calls=max_parallel_calls,
    )


def make_agent(
    inference: Any, *, chat: ChatFormat = CHAT, tools: Any = None, judge: Any = None, **changes: Any
) -> Agent:
    """Return an agent of an engine, of the script of a policy, or of a list with the policy's turns.

    `changes` are limits and further fields of the agent.
    """
    limits: dict[str, Any] = {"max_response_tokens": 4000, "max_turns": 8, "max_tool_tokens": 64, "timeout_s": 1e6}
    limits = {name: changes.pop(name, value) for name, value in limits.items()}
    if isinstance(inference, list):
        turns = inference
        inference = ScriptedPolicy(lambda request: turns[request.turn - 1], chat.tokenizer)
    elif callable(inference):
        inference = ScriptedPolicy(inference, chat.tokenizer)
    return Agent(
        inference=inference,
        chat=chat,
        tools=tools or python_tools(),
        judge=judge or FakeJudge(),
        limits=RolloutLimits(**limits),
        sampling=Sampling(),
        **changes,
    )
