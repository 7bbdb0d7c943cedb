"""`rocstar rollout --teacher`: conversations of another model on a recipe's tasks, as data of a cold start.

    tasks ──> agent with the recipe's tools ──> TeacherSession ──> judge ──> rows of `sft.data`

The teacher gets messages and the schemas of the tools, as a client's agent sends them: its own chat template and
tokenizer apply. The model that will learn needs neither weights nor a cold start yet.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, cast

from rocstar.engine.chat.callforms import decoded_arguments
from rocstar.engine.gateway.dialects import chat as chat_dialect
from rocstar.engine.gateway.messages import FunctionCall, Message, Request
from rocstar.engine.gateway.teacher import Teacher, TeacherSession, chat_messages
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.progress.progress import working
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.results import cut_middle
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import Attempt, Scored, Task, ToolCall, TrajectoryKey, Turn
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.types import SandboxError
from rocstar.train.evaluation.rollouts import first_stage
from rocstar.train.evaluation.saved_model import run_to_end
from rocstar.train.learner.cold_start import build_tokenizer
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.prompts import dated
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import QUESTION
from rocstar.train.record.targets import check_file, write_or_rescue
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.serving.openai import KEY_VARIABLE
from rocstar.train.tasks.chat_format import chat_format

Rows = list[dict[str, Any]]


def record_teacher(
    recipe: Recipe,
    model: str | None,
    *,
    url: str,
    name: str,
    out: Path,
    limit: int,
    only_correct: bool,
    force: bool = False,
) -> dict[str, int]:
    """Write the conversations of the teacher on the first `limit` tasks; return how many attempts there were.

    The key of the endpoint is in the environment's ROCSTAR_OPENAI_KEY.

    Raises:
        ConfigError: `out` exists and `force` is false, or every attempt failed.
    """
    if url.partition("://")[0] not in ("http", "https"):
        raise ConfigError(f"--teacher {url!r} is no address; it begins with http:// or https:// and ends with /v1")
    check_file(out, force=force, instead="")
    out, recipe = out.resolve(), dated(recipe, model)
    stage, tasks = first_stage(recipe)
    path = model or recipe.model.path
    asked = [{"messages": task.messages} for task in tasks]
    tokenizer = build_tokenizer(recipe, cast("Any", asked)) if path == "scratch" else load_tokenizer(path)

    async def work() -> dict[str, int]:
        async with (
            open_sandbox(recipe) as sandbox,
            Teacher(
                url,
                model=name,
                api_key=os.environ.get(KEY_VARIABLE, ""),
                max_requests=recipe.engine.max_running,
                timeout_s=recipe.engine.trajectory_timeout_s,
            ) as teacher,
        ):
            limits = {"max_response_tokens": stage.max_response_tokens, "max_turns": stage.max_turns}
            chat = chat_format(recipe, tokenizer)
            agent = make_agent(recipe, cast("Any", None), chat, sandbox, **limits)
            recorder = _Recorder(recipe, agent, teacher)
            with working("the teacher", unit="tasks", total=len(tasks[:limit])) as progress:

                async def record(task: Task) -> Rows:
                    rows = await recorder.rows_of(task, only_correct=only_correct)
                    progress.done += 1
                    return rows

                rows = [row for rows in await asyncio.gather(*map(record, tasks[:limit])) for row in rows]
        if recorder.counts["failed"] == len(tasks[:limit]):
            raise ConfigError(f"every attempt failed; the last one: {recorder.last_failure}")

        def write(folder: Path) -> None:
            (folder / out.name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

        write_or_rescue(out.parent, write)
        return {**recorder.counts, "conversations": len(rows)}

    with StatusLine():
        return run_to_end(work())


class _Recorder:
    """Attempts of the teacher with the recipe's tools, at most `engine.max_running` at a time."""

    def __init__(self, recipe: Recipe, agent: Agent, teacher: Teacher) -> None:
        self._recipe, self._agent, self._teacher = recipe, agent, teacher
        self._room = asyncio.Semaphore(recipe.engine.max_running)
        self.counts = Counter(attempts=0, correct=0, failed=0)
        self.last_failure: object = None

    async def rows_of(self, task: Task, *, only_correct: bool) -> Rows:
        """Return the conversations of one attempt; none if it failed, or is not correct where it must be."""
        key = TrajectoryKey(seed=self._recipe.run.seed, step=1, task_id=task.id, sibling=0)
        async with self._room:
            self.counts["attempts"] += 1
            deadline = asyncio.get_running_loop().time() + self._agent.limits.timeout_s
            session = TeacherSession(self._teacher, self._agent, key, deadline=lambda: deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._solve(session, task, key, deadline)
                turns = tuple(map(_turn, session.graph.nodes))
                attempt = Attempt(task=task, turns=turns, is_truncated=session.finish is not None)
                outcome = await self._agent.judge.score(attempt, deadline=deadline)
            except (InferenceError, RequestError, SandboxError, ToolFailure, TimeoutError) as error:
                self.counts["failed"] += 1
                self.last_failure = repr(error)
                return []
        is_correct = isinstance(outcome, Scored) and outcome.is_correct
        self.counts["correct"] += is_correct
        return session.conversations() if is_correct or not only_correct else []

    async def _solve(self, session: TeacherSession, task: Task, key: TrajectoryKey, deadline: float) -> None:
        """The built-in turn loop, by messages: the teacher's calls run in the sandbox until it answers."""
        agent, asked = self._agent, self._recipe.model.task_prompt.replace(QUESTION, task.question)
        shown = chat_messages([*task.context, {"role": "user", "content": asked}])
        messages = chat_dialect.read({"model": "teacher", "messages": shown}).messages
        functions = tuple(tool if isinstance(tool, dict) else dict(tool) for tool in agent.chat.tools)
        async with agent.tools.open(seed=stream_of(key, purpose="tools")) as tools:
            while session.finish is None:
                request = Request(model="teacher", messages=messages, functions=functions)
                answer = (await session.sample(request, len(messages).to_bytes(4))).message
                if not answer.calls:
                    return
                calls = [_call(call) for call in answer.calls]
                results = await tools.execute(calls, turn=len(session.graph.nodes), deadline=deadline)
                limit, tokenizer = agent.limits.max_tool_tokens, agent.chat.tokenizer
                texts = [cut_middle(result.text, tokenizer, limit) for result in results]
                answered = zip(answer.calls, texts, strict=True)
                messages = (*messages, answer, *(Message(role="tool", text=t, call_id=c.id) for c, t in answered))


def _call(call: FunctionCall) -> ToolCall:
    arguments = decoded_arguments(call.arguments)
    if isinstance(arguments, dict):
        return ToolCall(name=call.name, arguments=arguments)
    return ToolCall(name=call.name, arguments=None, malformed="the arguments are no JSON object")


def _turn(node: Any) -> Turn:
    """The judge's view of a sample, whose tokens are unknown."""
    return Turn(start=0, end=0, text=node.message.text, stopped=True, calls=tuple(map(_call, node.message.calls)))
