"""`rocstar chat`: a terminal client of an endpoint, a given one or one opened here."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.console import Console

from rocstar.engine.serve.terminal.chat_history import ChatHistory
from rocstar.engine.serve.terminal.client import ChatClient
from rocstar.engine.serve.terminal.screen import Screen
from rocstar.engine.serve.terminal.session import ChatSession, answer_all
from rocstar.train.served.recorded_start import RecordedStart

if TYPE_CHECKING:
    from rocstar.train.served.answering import ServeOrder

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
