"""Records what a server of openenv 0.10 answers (openenv_frames.json), in an environment of its own:

python -m venv /tmp/oe && /tmp/oe/bin/pip install openenv==0.10.0
/tmp/oe/bin/python record_openenv.py > openenv_frames.json
"""

import asyncio
import json
import random
import threading
import time
import urllib.request

import uvicorn
import websockets
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class GuessAction(Action):
    """One guess."""

    number: int = Field(..., ge=1, le=6, description="The number to guess")
    how: str = Field(default="", pattern="^[a-z]*$", description="Not read")


class GuessObservation(Observation):
    message: str = Field(default="", description="The answer of the environment")


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._secret = random.Random(seed).randint(1, 6)
        return GuessObservation(message=f"Guess {'low' if self._secret <= 3 else 'high'}.", reward=0.25)

    def step(self, action, timeout_s=None, **kwargs):
        if action.number == 6:
            raise RuntimeError("six")
        won = action.number == self._secret
        return GuessObservation(message="yes" if won else "no", done=won, reward=1.0 if won else -0.5)

    @property
    def state(self):
        return State(episode_id="", step_count=0)


class NoteEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server, self._notes = FastMCP("notes"), []

        @server.tool
        def note(text: str) -> str:
            """Keep a note."""
            if text == "bad":
                raise ValueError("no such note")
            self._notes.append(text)
            return ", ".join(self._notes)

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._notes.clear()
        return Observation(reward=None)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State(episode_id="", step_count=0)


def serve(app, port):
    threading.Thread(target=uvicorn.run, args=(app,), kwargs={"port": port, "log_level": "error"}, daemon=True).start()


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


async def talk(port, *frames):
    pairs = []
    async with websockets.connect(f"ws://127.0.0.1:{port}/ws") as socket:
        for frame in frames:
            await socket.send(json.dumps(frame))
            pairs.append([frame, json.loads(await socket.recv())])
    return pairs


async def refused(port):
    """What a connection beyond the capacity gets."""
    async with websockets.connect(f"ws://127.0.0.1:{port}/ws") as first:
        await first.send(json.dumps({"type": "reset", "data": {}}))
        await first.recv()
        async with websockets.connect(f"ws://127.0.0.1:{port}/ws") as second:
            return json.loads(await second.recv())


def step(**action):
    return {"type": "step", "data": action}


def note(text):
    return step(type="call_tool", tool_name="note", arguments={"text": text})


def main():
    serve(create_fastapi_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=1), 8941)
    serve(create_fastapi_app(NoteEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=1), 8942)
    time.sleep(3)
    reset = {"type": "reset", "data": {"seed": 1}}
    tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    guess = [reset, step(number=3), step(number=3, how="A"), step(number=2)]
    found = {
        "guess": {"/schema": ask(8941, "/schema"), "/mcp": ask(8941, "/mcp", tools)},
        "note": {"/schema": ask(8942, "/schema"), "/mcp": ask(8942, "/mcp", tools)},
        "talks": {
            "guess": asyncio.run(talk(8941, *guess)),
            "six": asyncio.run(talk(8941, reset, step(number=6))),
            "note": asyncio.run(talk(8942, reset, note("a"), note("bad"), note("b"))),
        },
        "refused": asyncio.run(refused(8941)),
    }
    print(json.dumps(found))


main()
