"""Agents of public packages for foreign_agents.py: loops around a model, each with the tool of examples/own_agent.

The packages are searched behind those of this environment, in the folder of FOREIGN_PACKAGES.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path += [os.environ["FOREIGN_PACKAGES"], str(Path(__file__).parents[1] / "examples" / "own_agent")]

from agent import SYSTEM, TOOL, calculate


async def chat(task: Any, client: Any, sandbox: Any) -> str:
    """The OpenAI SDK over chat completions, with the SDK's usual loop."""
    from openai import AsyncOpenAI

    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}]
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as openai:
        while True:
            answer = await openai.chat.completions.create(
                model=client.model, messages=messages, tools=[{"type": "function", "function": TOOL}]
            )
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": calculate(call.function.arguments)}
                for call in message.tool_calls
            ]


async def anthropic(task: Any, client: Any, sandbox: Any) -> str:
    """The Anthropic SDK over messages, streamed."""
    from anthropic import AsyncAnthropic

    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    messages: list[Any] = [{"role": "user", "content": task.question}]
    async with AsyncAnthropic(base_url=client.url, api_key=client.api_key) as made:
        while True:
            async with made.messages.stream(
                model=client.model, max_tokens=100, system=SYSTEM, messages=messages, tools=[tool]
            ) as stream:
                answer = await stream.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": calculate(json.dumps(one.input))}
                for one in answer.content
                if one.type == "tool_use"
            ]
            if not results:
                return "".join(one.text for one in answer.content if one.type == "text")
            messages.append({"role": "user", "content": results})


async def responses(task: Any, client: Any, sandbox: Any) -> str:
    """openai-agents over Responses, with its own runner."""
    from agents import Agent, FunctionTool, OpenAIResponsesModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    async def call(context: Any, arguments: str) -> str:
        return calculate(arguments)

    set_tracing_disabled(True)
    tool = FunctionTool(
        name=TOOL["name"],
        description=TOOL["description"],
        params_json_schema=TOOL["parameters"],
        on_invoke_tool=call,
        strict_json_schema=False,
    )
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as openai:
        model = OpenAIResponsesModel(model=client.model, openai_client=openai)
        agent = Agent(name="boxes", instructions=SYSTEM, model=model, tools=[tool])
        result = await Runner.run(agent, task.question, max_turns=4)
    return str(result.final_output)
