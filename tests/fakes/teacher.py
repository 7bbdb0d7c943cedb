"""A stand-in for an endpoint of OpenAI's chat completions, whose answers follow a script."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the assistant's message for the body of a request."""


def calls(name: str, arguments: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    """A message with one call, as OpenAI's API gives it."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "call_9", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@asynccontextmanager
async def chat_endpoint(answer: Answer, requests: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Serve it; yield its address, which ends with /v1. `requests` gets the bodies."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        requests.append({**body, "key": request.headers.get("Authorization", "")})
        message = answer(body)
        if "status" in message:
            return web.json_response({"error": message}, status=message["status"])
        finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
