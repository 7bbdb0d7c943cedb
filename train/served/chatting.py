"""`rocstar chat`: the terminal in front of an endpoint, which is somebody's or opened here for it alone."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rocstar.engine.serve.terminal.remote import RemoteChat
from rocstar.engine.serve.terminal.screen import Screen
from rocstar.engine.serve.terminal.session import ChatSession, answer_all

if TYPE_CHECKING:
    from rocstar.train.served.answering import ServeOrder

HISTORY = "ROCSTAR_CHAT_HISTORY"
"""The environment's name for the file of what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder:
    """What is to be asked.

    Attributes:
        prompts: without a person; None where one types.
        as_json: answers as objects, a line each.
        num_choices: samples of every answer.
        fields: of every request.
    """

    prompts: Sequence[str] | None
    as_json: bool
    num_choices: int
    fields: Mapping[str, Any] = field(default_factory=dict)


def chat_with(order: ChatOrder, *, url: str, model: str, token: str | None) -> int:
    """Chat with an endpoint. 1 if an answer failed."""
    remote = RemoteChat(url=url.rstrip("/"), model=model, token=token, fields=order.fields)
    return asyncio.run(_chat(order, remote, f"{model} at {url}"))


def chat_locally(order: ChatOrder, serving: ServeOrder) -> int:
    """Open a model's endpoint for this chat alone. ConfigError for what cannot run; 1 if an answer failed."""
    from rocstar.train.evaluation.saved_model import run_to_end
    from rocstar.train.served.answering import serving as opened

    codes: list[int] = []

    async def work() -> None:
        quiet = dataclasses.replace(serving, note=lambda line: None)
        async with opened(quiet) as (served, listening):
            remote = RemoteChat(url=f"{listening.url}/v1", token=serving.token, fields=order.fields)
            tools = f"tools in {served.isolation}" if served.isolation else "tools"
            codes.append(await _chat(order, remote, f"{served.recipe.model.path}, {tools}"))

    run_to_end(work())
    return codes[0]


async def _chat(order: ChatOrder, remote: RemoteChat, whom: str) -> int:
    console = Console(highlight=False)
    screen = Screen(console)
    async with remote:
        if order.prompts is not None:
            good = await answer_all(
                remote, order.prompts, num_choices=order.num_choices, as_json=order.as_json, screen=screen
            )
            return 0 if good else 1
        from rocstar.engine.serve.terminal.lines import EditedLines

        screen.note(f"{whom}; /help lists commands")
        await ChatSession(remote, screen, num_choices=order.num_choices).run(EditedLines(_history()))
    return 0


def _history() -> Path | None:
    given = os.environ.get(HISTORY)
    if given is not None:
        return Path(given) if given else None
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "rocstar" / "chat_history"
