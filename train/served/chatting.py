"""`rocstar chat`: a terminal client of an endpoint, a given one or one opened here."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console

from rocstar.engine.record.files import FRAMES
from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.reading import read_records
from rocstar.engine.record.step_file import StepFile
from rocstar.engine.serve.terminal.chat_history import ChatHistory
from rocstar.engine.serve.terminal.client import ChatClient
from rocstar.engine.serve.terminal.screen import Screen
from rocstar.engine.serve.terminal.session import ChatSession, answer_all
from rocstar.engine.types import HIDDEN
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import CONFIG, TRAJECTORIES

if TYPE_CHECKING:
    from rocstar.train.served.answering import ServeOrder


_PLACE = re.compile(r"(.+):([0-9]+)(?:@([0-9]+))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStart:
    """The beginning of a recorded trajectory.

    Attributes:
        name: its position, for messages.
        segments: its ids, segment by segment, each with its text.
        goes_on: True if the policy writes next; else its last turn ended, and the user may write.
        question: the task's question.
        answer: the policy's last text; empty if `goes_on`.
    """

    name: str
    segments: Sequence[tuple[Sequence[int], str]]
    goes_on: bool
    question: str
    answer: str

    @property
    def ids(self) -> list[int]:
        """All of it."""
        return [token for ids, _ in self.segments for token in ids]

    @property
    def text(self) -> str:
        """All of it, as it reads."""
        return "".join(text for _, text in self.segments)

    def history(self) -> ChatHistory:
        """A talk that goes on from here."""
        messages = [{"role": "user", "content": self.question}]
        if not self.goes_on:
            messages.append({"role": "assistant", "content": self.answer})
        return ChatHistory(messages=messages, ids=self.ids)

    def check_tokens(self, decode: Callable[[Sequence[int]], str]) -> None:
        """ConfigError if these are tokens of another tokenizer than that of `decode`."""
        for ids, text in self.segments:
            try:
                found = decode(ids)
            except (IndexError, KeyError, OverflowError, TypeError, ValueError):
                found = None  # an id that this tokenizer does not have
            if found != text:
                raise ConfigError(
                    f"--from {self.name}: its tokens read {text[:60]!r} where they were written and "
                    f"{(found or '')[:60]!r} here; give a model with the tokenizer of that run"
                )


def recorded_start(place: str) -> RecordedStart:
    """Return the beginning that FILE:ROW@TURN names: all before that turn, counted from 1; without one, all.

    Raises ConfigError if it does not exist, or must not be shown.
    """
    found = _PLACE.fullmatch(place)
    if found is None:
        raise ConfigError(f"--from {place!r}: give FILE:ROW or FILE:ROW@TURN, as the page of a trajectory shows it")
    path, row, turn = Path(found[1]), int(found[2]), found[3]
    record = _record(path, row)
    name = f"{record.get('id')} of {path}"
    if ((record.get("task") or {}).get("meta") or {}).get(HIDDEN):
        raise ConfigError(f"--from {name}: the licence of this task asks that it is not shown")
    turns = record["turns"]
    if turn is not None and not 1 <= int(turn) <= len(turns):
        raise ConfigError(f"--from {name}: it has no turn {turn}; it has {len(turns)}")
    if turn is None and not turns:
        raise ConfigError(f"--from {name}: the policy wrote nothing in it")
    end = len(record["ids"]) if turn is None else int(turns[int(turn) - 1]["start"])
    begin = max(start for start in record.get("starts", (0,)) if start < end)
    return RecordedStart(
        name=name if turn is None else f"{name}, before turn {turn}",
        segments=[
            (record["ids"][s["start"] : s["end"]], s["text"])
            for s in record["segments"]
            if begin <= s["start"] and s["end"] <= end
        ],
        goes_on=turn is not None,
        question=str(record["task"]["question"]),
        answer="" if turn is not None else str(turns[-1]["text"]),
    )


def _record(path: Path, row: int) -> dict[str, Any]:
    try:
        if path.suffix == FRAMES:
            step = StepFile(path)
            if row < len(step):
                return step.record(row)
            count = len(step)
        else:
            records = list(itertools.islice(read_records(path), row + 1))
            if row < len(records):
                return records[row]
            count = len(records)
    except (RecordError, OSError) as error:
        raise ConfigError(f"--from {str(path)!r}: {error}") from None
    raise ConfigError(f"--from {str(path)!r}: there is no row {row}; there are {count}, the first is 0")


MAX_CHARS = 240
"""Longest question in characters: users do not type longer ones."""
MAX_READ = 32
"""Trajectories whose questions are read."""


def solved_question(target: Path) -> str | None:
    """The question of the first trajectory of the run's last judged step that was solved with calls of which
    none failed.

    `target` is the run's folder, or a checkpoint in it. None: there is no such trajectory, all questions are
    long or of several lines, or the licence of its task asks that it is not shown.
    """
    folders = (target, *target.absolute().parents[:2])
    runs = (f for f in folders if (f / CONFIG).is_file() and (f / TRAJECTORIES).is_dir())
    if (run := next(runs, None)) is None:
        return None
    for path in sorted((run / TRAJECTORIES).glob(f"step_*{FRAMES}"), reverse=True):
        try:
            step = StepFile(path)
            rows = step.rows
            found = rows["is_correct"] & (rows["tool_calls"] > 0) & (rows["tool_errors"] == 0) & ~rows["hidden"]
            for row in np.flatnonzero(found)[:MAX_READ].tolist():
                question = str(step.record(row)["task"]["question"]).strip()
                if len(question) <= MAX_CHARS and question.isprintable():
                    return question
            return None
        except (RecordError, OSError):  # not judged yet, or not whole: the step before it
            continue
    return None


SHOWN_LINES = 12
"""The last lines of a recorded start that are shown."""
HISTORY = "ROCSTAR_CHAT_HISTORY"
"""The environment variable with the history file of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder:
    """The prompts and settings of a chat.

    Attributes:
        prompts: the prompts of a non-interactive chat; None if a user types them.
        as_json: print each answer as one JSON line.
        num_choices: samples of every answer.
        fields: fields of every request.
        start: a recorded start; None for a new conversation.
        example: a question that the model solves, shown to the user; None if unknown.
    """

    prompts: Sequence[str] | None
    as_json: bool
    num_choices: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    start: RecordedStart | None = None
    example: str | None = None


def chat_with(order: ChatOrder, *, url: str, model: str, token: str | None) -> int:
    """Chat with an endpoint; of a URL that names a server alone, at its /v1. 1 if an answer failed."""
    if not urlsplit(url).path.strip("/"):
        url = f"{url.rstrip('/')}/v1"
    client = ChatClient(url=url.rstrip("/"), model=model, token=token, fields=order.fields)
    return asyncio.run(_chat(order, client, f"{model} at {url}"))


def chat_locally(order: ChatOrder, serving: ServeOrder) -> int:
    """Open a model's endpoint for this chat alone. ConfigError for what cannot run; 1 if an answer failed."""
    from rocstar.train.evaluation.saved_model import run_to_end
    from rocstar.train.served.answering import isolation_of, open_served

    codes: list[int] = []

    async def work() -> None:
        quiet = dataclasses.replace(serving, note=lambda line: None)
        async with open_served(quiet) as (agent, endpoint):
            if order.start is not None:
                order.start.check_tokens(agent.chat.decode)
            token = serving.options.owners.known[0].token
            client = ChatClient(url=f"{endpoint.url}/v1", token=token, fields=order.fields)
            tools = f"tools in {isolation}" if (isolation := isolation_of(agent)) else "tools"
            codes.append(await _chat(order, client, f"{_short(serving.recipe.model.path)}, {tools}"))

    run_to_end(work())
    return codes[0]


async def _chat(order: ChatOrder, client: ChatClient, whom: str) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a policy writes what this terminal may have no letters for
    screen, start = Screen(Console(highlight=False)), order.start
    history = ChatHistory() if start is None else start.history()
    async with client:
        if order.prompts is not None:
            prompts: list[str | None] = [*order.prompts]
            if start is not None and start.goes_on:
                prompts = [None]
            good = await answer_all(
                client, prompts, num_choices=order.num_choices, as_json=order.as_json, screen=screen, history=history
            )
            return 0 if good else 1
        from rocstar.engine.serve.terminal.line_editor import LineEditor

        screen.note(f"{whom}; /help lists commands")
        if order.example is not None and start is None:
            screen.note(f"solved in training, for example: {order.example}")
            screen.note("it learned from one question at a time: /new before the next")
        session = ChatSession(client, screen, history=history, num_choices=order.num_choices)
        if start is not None:
            lines = start.text.rstrip("\n").split("\n")
            cut = [f"... {len(lines) - SHOWN_LINES} lines before"] if len(lines) > SHOWN_LINES else []
            position = f"{start.name}, {len(start.ids)} tokens:"
            screen.note("\n".join([position, *cut, *lines[-SHOWN_LINES:]]))
            if start.goes_on:
                await session.ask(None)
        await session.run(LineEditor(_history()))
    return 0


def _short(path: str) -> str:
    """The path of a model as one would type it here, or its name on the hub."""
    here = os.path.relpath(path)
    return here if os.path.isabs(path) and len(here) < len(path) else path


def _history() -> Path | None:
    given = os.environ.get(HISTORY)
    if given is not None:
        return Path(given) if given else None
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "rocstar" / "chat_history"
