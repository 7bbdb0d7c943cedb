"""Sessions of clients: agents whose requests are one trajectory, and single requests of other dialects.

    /sessions/KEY/...  ──first request──> open ──DELETE, idle, shutdown──> closed ──> record
    /v1/messages, ...  ──one request────> open ──answered──> closed ──> record

A session belongs to the owner of its first request; the key of another owner's session names another session.
"""

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from rocstar.engine.gateway.dialects.fields import Known
from rocstar.engine.gateway.harness import turns_of
from rocstar.engine.gateway.messages import Request, SampledTurn
from rocstar.engine.gateway.session import AgentSession
from rocstar.engine.inference.base import Sampling
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import UNJUDGED_OUTCOME
from rocstar.engine.serve.conversation_manager import ConversationManager
from rocstar.engine.serve.conversation_store import CONVERSATION, TEMPERATURE
from rocstar.engine.types import FinishReason, Task, Trajectory, TrajectoryKey, TrajectoryTimes, VersionSpan
from rocstar.sandbox.http.errors import RequestError

MAX_SESSIONS = 1024
IDLE_S = 600.0
"""A session without a request for so long is closed."""
SOURCE = "session"


@dataclass(slots=True, eq=False)
class ServedSession:
    """A session, the id of its record, and its use."""

    session: AgentSession
    name: str
    key: tuple[str, str] | None
    """Its owner and its key; None of a single request."""
    began: float
    """Seconds since 1970."""
    used: float
    """When it was opened or its latest request ended, on the loop's clock."""
    num_requests: int = 0
    """Requests that are being answered."""
    timer: asyncio.TimerHandle | None = None


class ServedSessions:
    """Invariant: a session that was opened is closed and kept once; each owner has at most
    MAX_SESSIONS with a key."""

    def __init__(self, agent: Agent, conversations: ConversationManager, tasks: asyncio.TaskGroup) -> None:
        self._agent, self._conversations, self._tasks = agent, conversations, tasks
        self._open: dict[ServedSession, None] = {}
        self._named: dict[tuple[str, str], ServedSession] = {}

    def find(self, owner: str, key: str, *, opens: bool = False) -> ServedSession:
        """Return the session of a key, opened if asked. Raises RequestError."""
        served = self._named.get((owner, key))
        if served is not None:
            return served
        if not opens:
            raise RequestError(f"there is no session {key[:40]!r}; a request opens one", status=404, kind="not_found")
        num_open = sum(one == owner for one, _ in self._named)
        if num_open >= MAX_SESSIONS:
            message = f"{num_open} sessions of yours are open; close some by DELETE /sessions/KEY, or ask again later"
            raise RequestError(message, status=429, kind="queue_full")
        self._conversations.check_room(1)
        served = self._named[owner, key] = self.open(self._agent, (owner, key))
        return served

    def known(self, owner: str, key: str | None, route: str) -> Known:
        """Return the values read from the session's latest body of a route."""
        served = None if key is None else self._named.get((owner, key))
        return {} if served is None else served.session.known.setdefault(route, {})

    def open_single(self, asked: Request) -> ServedSession:
        """Open the session of one request, which may choose its temperature."""
        self._conversations.check_room(1)
        temperature = self._agent.sampling.temperature if asked.temperature is None else asked.temperature
        return self.open(replace(self._agent, sampling=Sampling(temperature=temperature)), None)

    def open(self, agent: Agent, key: tuple[str, str] | None) -> ServedSession:
        """Open a session. `check_room` must have passed."""
        conversations, loop = self._conversations, asyncio.get_running_loop()
        name = conversations.begin_record()
        owned = "" if key is None else "\0".join(key)
        task_id = f"{SOURCE}-{hashlib.blake2b((owned or name).encode(), digest_size=10).hexdigest()}"
        session = AgentSession(
            agent,
            TrajectoryKey(seed=secrets.randbits(53), step=0, task_id=task_id, sibling=0),
            max_context=conversations.options.max_context,
            deadline=lambda: loop.time() + agent.limits.timeout_s,
        )
        served = ServedSession(session, name, key, time.time(), loop.time())
        if key is not None:
            served.timer = loop.call_later(IDLE_S, self._check_idle, served)
        self._open[served] = None
        conversations.metrics.conversations[(SOURCE,)] += 1
        return served

    async def sample(self, served: ServedSession, asked: Request, digest: bytes) -> SampledTurn:
        """Sample in a session. Raises RequestError."""
        self._conversations.check_room(1)
        self._conversations.enter(1)
        served.num_requests += 1
        try:
            return await served.session.sample(asked, digest)
        finally:
            self._conversations.leave(1)
            served.num_requests -= 1
            served.used = asyncio.get_running_loop().time()

    async def close(self, served: ServedSession) -> None:
        """Close a session and keep its trajectory."""
        if served not in self._open:
            return
        del self._open[served]
        if served.timer is not None:
            served.timer.cancel()
        if served.key is not None:
            del self._named[served.key]
        finish = served.session.finish or FinishReason.answered
        await served.session.close()
        trajectories = [_trajectory(served, finish)] if served.session.graph.nodes else []
        self._conversations.metrics.ended(trajectories)
        await self._conversations.keep(served.name, trajectories)

    async def close_all(self) -> None:
        """Close every session."""
        for served in list(self._open):
            await self.close(served)

    def stop(self) -> None:
        """End all samples."""
        for served in list(self._open):
            self._tasks.create_task(self.close(served))

    def _check_idle(self, served: ServedSession) -> None:
        """Close a session that is idle, or look again when it may be."""
        loop = asyncio.get_running_loop()
        left_s = IDLE_S if served.num_requests else served.used + IDLE_S - loop.time()
        if served.num_requests or left_s > 0:
            served.timer = loop.call_later(left_s, self._check_idle, served)
        else:
            self._tasks.create_task(self.close(served))


def training_trace(session: AgentSession) -> dict[str, Any]:
    """Return the session in OpenEnv's format `TrainingTrace` (openenv/core/harness/training.py): an entry per
    sampled turn, without discards."""
    graph = session.graph
    discards, turns = graph.discards(), []
    for k, node in enumerate(graph.nodes):
        if k in discards:
            continue
        sampled = node.generation.ids
        prompt = graph.path_ids(k)[: node.num_ids - len(sampled)]
        turns.append({
            "node_id": str(k),
            "prompt_token_ids": prompt,
            "completion_token_ids": list(sampled),
            "per_token_logps": list(node.generation.logprobs),
            "loss_mask": [0] * len(prompt) + [1] * len(sampled),
        })  # fmt: skip
    return {"schema_version": 1, "turns": turns}


def _trajectory(served: ServedSession, finish: FinishReason) -> Trajectory:
    """The record of a session. It has no reward until a person gives one."""
    session = served.session
    graph, chat, columns = session.graph, session.agent.chat, session.graph.columns()
    first = graph.nodes[0]
    meta = {
        "face": SOURCE,
        TEMPERATURE: session.agent.sampling.temperature,
        CONVERSATION: served.name,
        "roots": {str(reason): count for reason, count in graph.reasons.items()},
        "ignored": dict(session.ignored),
    }
    question = next((m.text for m in reversed(first.tail) if m.role == "user"), chat.decode(first.context))
    return Trajectory(
        key=session.key,
        task=Task(id=session.key.task_id, source="serve", question=question, answer="", meta=meta),
        ids=columns.ids,
        logprobs=columns.logprobs,
        segments=tuple(columns.segments),
        version_spans=tuple(VersionSpan(start=a, end=b, version=v) for a, b, v in columns.spans),
        turns=tuple(turns_of(columns, graph, chat.form)),
        finish_reason=finish,
        outcome=UNJUDGED_OUTCOME,
        times=TrajectoryTimes(began=served.began, ended_s=time.time() - served.began),
        starts=tuple(columns.starts),
    )
