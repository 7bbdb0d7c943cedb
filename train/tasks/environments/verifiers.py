"""Tasks of verifiers' environment server (verifiers 0.4): it runs its own agent, whose model is the policy.

    run (row = TaskData, session of the gateway) ──> server: agent ──chat completions──> gateway
           <── delta, ...: rewards and errors of the trace ── reply: the end

ZeroMQ (DEALER to ROUTER) with frames [request id, method, msgpack]. The server is of an environment of its own.
"""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from rocstar.engine.gateway.programs import AgentClient
from rocstar.engine.rollout.environment import Environment, EnvironmentEpisode
from rocstar.engine.rollout.rollout import AgentFailure
from rocstar.engine.types import Given, Task
from rocstar.sandbox.extras import pip_command
from rocstar.train.recipe.errors import ConfigError

ASK_MS = 10_000
"""Milliseconds for a question about the server, before anything runs."""
KIND = "environment_failed"
KEY_VARIABLE = "ROCSTAR_SESSION_KEY"
"""The server sends this variable of its environment as the key, if it has one; the session is in the path."""


class Verifiers(Environment):
    """The environment that the server at `address` has loaded, `EnvServer` or `serve_env`.

    Raises:
        ConfigError: pyzmq is missing, or no such server answers there.
    """

    def __init__(self, address: str = "tcp://127.0.0.1:5000") -> None:
        try:
            import zmq
            import zmq.asyncio
        except ImportError:
            raise ConfigError(f"it needs pyzmq, which is missing; run: {pip_command('pyzmq')}") from None
        self._address, self._zmq = address, zmq
        self.solve = self._solve
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                raise ConfigError(f"args.address = {address!r}: {error}") from None
            socket.send_multipart([b"health", b"health", msgspec.msgpack.encode({})])
            if not socket.poll(ASK_MS):
                raise ConfigError(f"args.address = {address!r}: no server answers; start it, or correct the address")

    async def open(self, task: Task, seed: int) -> EnvironmentEpisode:
        raise AssertionError("its server runs the agent")

    async def _solve(self, task: Task, client: AgentClient) -> Given:
        """Let the server attempt a task with the policy. AgentFailure if it fails or sends frames of another form."""
        try:
            return await self._attempt(task, client)
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise AgentFailure(KIND, f"{self._address} sent a frame of another form: {error!r:.200}") from error

    async def _attempt(self, task: Task, client: AgentClient) -> Given:
        model = {"type": "eval", "base_url": f"{client.url}/sessions/{client.api_key}/v1", "api_key_var": KEY_VARIABLE}
        run = {"task_data": task.meta["row"], "client": model, "model": client.model, "sampling": {}}
        name = secrets.token_hex(16)
        with self._zmq.asyncio.Context.instance().socket(self._zmq.DEALER) as socket:
            socket.setsockopt(self._zmq.LINGER, 1000)
            socket.connect(self._address)
            await socket.send_multipart([name.encode(), b"run", msgspec.msgpack.encode(run)])
            done, traces = False, dict[str, dict[str, Any]]()
            try:
                while not done:
                    _, kind, data = await socket.recv_multipart()
                    done = kind != b"delta"
                    frame = msgspec.msgpack.decode(data, strict=False)
                    if not done:
                        _apply(frame, traces)
            finally:
                if not done:  # cancelled: the server need not go on
                    cancel = msgspec.msgpack.encode({"request_id": name})
                    socket.send_multipart([b"cancel", b"cancel", cancel])
        if not frame["success"]:
            raise AgentFailure(KIND, str(frame["error"]))
        return Given(reward=_reward(traces))


def _apply(delta: Mapping[str, Any], traces: dict[str, dict[str, Any]]) -> None:
    """Add a part of a trace to those that the server has sent."""
    name = delta["trace"]
    if delta.get("discard"):
        traces.pop(name, None)
        return
    trace = traces.setdefault(name, {"errors": []})
    trace["errors"] += delta.get("errors", [])
    trace.update(delta.get("set", {}))


def _reward(traces: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the weighted sum of the rewards of the one trace."""
    if len(traces) != 1:
        raise AgentFailure(KIND, f"{len(traces)} traces of a task; environments of one agent are supported")
    (trace,) = traces.values()
    if trace["errors"]:
        error = trace["errors"][-1]
        raise AgentFailure(KIND, f"{error['type']}: {error['message']}")
    rewards = trace.get("rewards") or {}
    if not rewards or None in rewards.values():
        raise AgentFailure(KIND, f"the server scored nothing: rewards = {rewards!r:.200}")
    return float(sum(reward["score"] * reward["weight"] for reward in rewards.values()))
