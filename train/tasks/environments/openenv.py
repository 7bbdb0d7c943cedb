"""A server of OpenEnv's protocol (openenv 0.10): one WebSocket per episode.

    GET /schema, POST /mcp tools/list ──> tools: one `step` with the action's fields, or those of an MCP environment
    /ws: reset(row, seed) ──> observation (ends the prompt); step(action) ──> observation, reward, done; close

HTTP's /reset and /step are not used: each of them builds an environment of its own. An action that the server finds
invalid is an error that the policy reads; any other error of the server fails the trajectory.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from rocstar.engine.rollout.environment import Environment, EnvironmentEpisode, EnvironmentFailure
from rocstar.engine.tools.tool import BadArguments, Tool, ToolContext, ToolError, ToolOutput, check_parameters
from rocstar.engine.types import Task
from rocstar.train.recipe.errors import ConfigError

ASK_S = 10.0
"""Seconds for a question about the server, before anything runs."""
CLOSE_S = 1.0
"""Seconds that a server may take to end a connection."""
MAX_FRAME_BYTES = 16 << 20


class OpenEnv(Environment):
    """The environment of the server at `url`.

    Args:
        url: http://HOST:PORT.
        reward: the sum of the rewards of all steps, or the last one.

    Raises:
        ConfigError: no such server answers there, or its actions have no schema.
    """

    def __init__(self, url: str, reward: Literal["sum", "last"] = "sum") -> None:
        if reward not in ("sum", "last"):
            raise ConfigError(f"args.reward = {reward!r} is neither 'sum' nor 'last'")
        self._url, self._rule = url.rstrip("/"), reward
        schema = self._ask("/schema")
        listed = self._ask("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        self._is_mcp = "result" in listed
        try:
            functions = _mcp_functions(listed) if self._is_mcp else [_step_function(schema["action"])]
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"args.url = {url!r}: its actions have not OpenEnv's form: {error!r:.200}") from None
        for one in functions:
            problem = check_parameters(one["parameters"])
            if problem or not isinstance(one["name"], str) or not isinstance(one["description"], str):
                raise ConfigError(f"args.url = {url!r}: the tool {one['name']!r:.80}: {problem or 'it has no texts'}")
        self.functions = [{"type": "function", "function": one} for one in functions]

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that the server answers. ConfigError if it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=ASK_S) as answer:
                text = answer.read(MAX_FRAME_BYTES + 1)
            if len(text) > MAX_FRAME_BYTES or not isinstance(value := json.loads(text), dict):
                raise ValueError(f"it is no JSON object of at most {MAX_FRAME_BYTES} bytes")
            return value
        except (OSError, ValueError, RecursionError) as error:
            if body is not None and isinstance(error, urllib.error.HTTPError):
                return {}  # a server without MCP
            raise ConfigError(
                f"args.url = {self._url!r}: {path} is not answered ({error}); start the server, or correct the URL"
            ) from None

    async def open(self, task: Task, seed: int) -> EnvironmentEpisode:
        """Connect, and reset with the row's columns and a seed: the row's, else `seed`."""
        episode = OpenEnvEpisode(url=self._url, sums=self._rule == "sum", client=aiohttp.ClientSession())
        try:
            await episode.connect()
            answer = await episode.ask("reset", {"seed": seed & 0x7FFFFFFF, **task.meta["row"]})
        except BaseException:  # cancelled, too: the episode is not the caller's yet
            await episode.close()
            raise
        episode.observation = _text(answer["observation"])
        episode.tools = [OpenEnvTool(one["function"], episode, self._is_mcp) for one in self.functions]
        return episode


@dataclass(slots=True, kw_only=True)
class OpenEnvEpisode(EnvironmentEpisode):
    """One connection, which is one environment of the server."""

    url: str
    sums: bool
    client: aiohttp.ClientSession
    socket: aiohttp.ClientWebSocketResponse | None = None
    earned: float = 0.0
    is_waiting: bool = False
    """A question has no answer yet. A later one would get it."""

    async def connect(self) -> None:
        try:
            self.socket = await self.client.ws_connect(
                f"{self.url.replace('http', 'ws', 1)}/ws",
                max_msg_size=MAX_FRAME_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
            )
        except (aiohttp.ClientError, OSError) as error:
            raise EnvironmentFailure(f"{self.url} cannot be connected: {error}") from error

    async def ask(self, kind: str, data: Mapping[str, Any]) -> Any:
        """Return the data of the answer.

        Raises:
            BadArguments: the server finds the action invalid.
            EnvironmentFailure: any other error, or no answer.
        """
        assert self.socket is not None
        if self.is_waiting:
            raise EnvironmentFailure(f"{self.url} did not answer an earlier call in time")
        self.is_waiting = True
        try:
            await self.socket.send_json({"type": kind, "data": data})
            message = await self.socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise EnvironmentFailure(f"{self.url}: {error}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EnvironmentFailure(f"{self.url} closed the connection ({message.data})")
        self.is_waiting = False
        answer = message.json()
        if answer["type"] == "error":
            problem = answer["data"]
            code, text = problem["code"], problem["message"]
            if code == "VALIDATION_ERROR" and kind == "step":
                raise BadArguments("; ".join(one["msg"] for one in problem.get("errors") or [{"msg": text}]))
            hint = "; set max_episodes to its capacity" if code == "CAPACITY_REACHED" else ""
            raise EnvironmentFailure(f"{self.url}: {code}: {text}{hint}")
        return answer["data"]

    async def step(self, action: Mapping[str, Any]) -> Any:
        """Take a step, and return its observation."""
        if self.is_over:
            raise ToolError("The episode is over")
        answer = await self.ask("step", action)
        gained = float(answer["reward"] or 0.0)
        self.earned, self.is_over = self.earned + gained if self.sums else gained, bool(answer["done"])
        return answer["observation"]

    async def reward(self) -> float | None:
        if self.is_waiting:
            raise EnvironmentFailure(f"{self.url} did not answer the last call in time")
        return self.earned

    async def close(self) -> None:
        """End the connection, which ends the environment."""
        if self.socket is not None:
            await self.socket.close()
        await self.client.close()


class OpenEnvTool(Tool):
    """The action of an environment, or a tool of an MCP environment."""

    parallel = False
    shared = "environment"

    def __init__(self, function: Mapping[str, Any], episode: OpenEnvEpisode, is_mcp: bool) -> None:
        self.name, self.description = function["name"], function["description"]
        self.parameters, self._episode, self._is_mcp = function["parameters"], episode, is_mcp

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the observation as text. ToolError for an error of an MCP tool."""
        if not self._is_mcp:
            return ToolOutput(_text(await self._episode.step(arguments)))
        action = {"type": "call_tool", "tool_name": self.name, "arguments": arguments}
        seen = await self._episode.step(action)
        if seen.get("error"):
            raise ToolError(seen["error"]["message"])
        result = seen.get("result")
        if isinstance(result, Mapping) and "content" in result:
            return ToolOutput("\n".join(part["text"] for part in result["content"] if part["type"] == "text"))
        return ToolOutput(_text(seen if result is None else result))


def _mcp_functions(listed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": one["name"], "description": one.get("description") or "", "parameters": one["inputSchema"]}
        for one in listed["result"]["tools"]
    ]


def _step_function(action: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: field for name, field in action.get("properties", {}).items() if name != "metadata"}
    return {
        "name": "step",
        "description": action.get("description") or "",
        "parameters": {**action, "properties": fields},
    }


def _text(observation: Any) -> str:
    """Return an observation as text: its only field if that is a text, else JSON, each without empty metadata."""
    if isinstance(observation, Mapping):
        fields = {name: value for name, value in observation.items() if name != "metadata" or value}
        only = next(iter(fields.values())) if len(fields) == 1 else None
        return only if isinstance(only, str) else json.dumps(fields, ensure_ascii=False) if fields else ""
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
