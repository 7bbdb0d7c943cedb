"""`rocstar serve` and `rocstar chat`: the effect of their options. Imports torch only to work."""

from __future__ import annotations

import argparse
import dataclasses
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rocstar.sandbox.command_line import format_error
from rocstar.sandbox.extras import missing_extra_message
from rocstar.sandbox.http.guard import Owner, Owners, load_owners, require_token_unless_loopback
from rocstar.sandbox.http.listening import parse_address
from rocstar.sandbox.http.printable import printable_line
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import named_code
from rocstar.train.record.run_directory import recipe_of

if TYPE_CHECKING:
    from rocstar.train.served.chatting import RecordedStart

Loading = Callable[[], AbstractContextManager[None]]
"""Shows that torch is being imported."""


def chat(options: argparse.Namespace, rest: Sequence[str], *, loading: Loading) -> int:
    """Chat by the options. `rest` are fields of the recipe. Return 1 if an answer failed."""
    if missing := missing_extra_message("rocstar chat", "chat"):
        raise ConfigError(missing)
    from rocstar.train.served.chatting import ChatOrder, chat_locally, chat_with, recorded_start, solved_question

    start = None if options.start is None else recorded_start(options.start)
    sampled = {"temperature": options.temperature, "seed": options.seed, "max_tokens": options.max_tokens}
    is_url = options.target.partition("://")[0] in ("http", "https")
    recipe = None if is_url else _local_recipe(options, rest)
    order = ChatOrder(
        prompts=_prompts(options, start),
        start=start,
        as_json=options.json,
        num_choices=options.n,
        fields={name: value for name, value in sampled.items() if value is not None},
    )
    if recipe is None:
        if rest or options.model or options.out or options.max_turns:
            given = rest[0] if rest else "--model, --out and --max-turns"
            raise ConfigError(f"{given} cannot change the server at {options.target}; leave it out")
        _check_address(options.target)
        token = _token(options.token_file)
        return chat_with(order, url=options.target, model=options.served_model, token=token)
    if order.prompts is None and options.model is None:
        order = dataclasses.replace(order, example=solved_question(Path(options.target)))
    with loading():
        from rocstar.engine.serve.conversation_manager import ServeOptions
        from rocstar.train.served.answering import ServeOrder

    serving = ServeOrder(
        recipe=recipe,
        out=_out(options, recipe, "chats"),
        max_tokens=options.max_tokens,
        max_turns=options.max_turns,
        options=ServeOptions(owners=Owners((Owner(name="", token=secrets.token_hex(16)),))),
        drain_s=0.0,
    )
    return chat_locally(order, serving)


def _local_recipe(options: argparse.Namespace, rest: Sequence[str]) -> Recipe:
    """Return the recipe of a model that this process opens. ConfigError if there is none."""
    if re.fullmatch(r"[\w.-]+:[0-9]+(/.*)?", options.target) and not Path(options.target).exists():
        raise ConfigError(f"{options.target!r} is not a run or a model; for a server pass http://{options.target}")
    if missing := missing_extra_message("rocstar chat of a model that is opened here", "train"):
        raise ConfigError(missing)
    recipe = recipe_of(options.target, options.model, rest)
    _name_code(recipe)
    return recipe


def _prompts(options: argparse.Namespace, start: RecordedStart | None) -> list[str] | None:
    """Return the prompts of a non-interactive chat; None if a user types them."""
    if start is not None and start.goes_on:
        if options.prompt is not None:
            raise ConfigError(
                f"--from {options.start} --prompt: it is the policy's turn there; leave --prompt out, or "
                "@TURN, to ask behind the trajectory's end"
            )
        return None if sys.stdin.isatty() and not options.json else []
    if options.prompt is not None and options.prompt != "-":
        return [options.prompt]
    if options.prompt is None and sys.stdin.isatty():
        if options.json:
            raise ConfigError("--json needs --prompt, or prompts on standard input")
        return None
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not {error.encoding}: {error.reason}; pipe text in that encoding"
        ) from None
    given = [line.strip() for line in text.splitlines()] if options.json else [text.strip()]
    if not any(given):
        raise ConfigError("standard input is empty; pipe a prompt in, or pass --prompt")
    return [prompt for prompt in given if prompt]


def serve(options: argparse.Namespace, rest: Sequence[str], *, loading: Loading) -> int:
    """Serve by the options. `rest` are fields of the recipe."""
    from rocstar.sandbox.http.access_log import parse_networks

    try:
        address, proxies = parse_address(options), parse_networks(options.trusted_proxy)
        owners = load_owners(options.token_file, {})
        require_token_unless_loopback(address.tcp_hosts, owners)
    except (ValueError, OSError) as error:
        raise ConfigError(format_error(error)) from None
    recipe = recipe_of(options.target, options.model, rest)
    _name_code(recipe)
    with loading():
        from rocstar.engine.serve.conversation_manager import ServeOptions
        from rocstar.train.served.answering import ServeOrder
        from rocstar.train.served.answering import serve as serve_order

    serve_order(
        ServeOrder(
            recipe=recipe,
            out=_out(options, recipe, "served"),
            max_tokens=options.max_tokens,
            max_turns=options.max_turns,
            address=address,
            options=ServeOptions(
                owners=owners,
                trusted_proxies=proxies,
                max_choices=options.max_choices,
                queue_timeout_s=options.queue_timeout,
            ),
            access_log=options.access_log,
            drain_s=options.drain,
        )
    )
    return 0


def _name_code(recipe: Recipe) -> None:
    """Print which modules the recipe names, before they are imported: a run may be another person's."""
    for field, spec in named_code(recipe.model_dump(include={"reward", "rl", "engine", "run", "tools"})):
        line = f"rocstar: {field} = {spec!r}: this module is imported now, and its code runs"
        print(printable_line(line, 1000), file=sys.stderr, flush=True)


def _out(options: argparse.Namespace, recipe: Recipe, name: str) -> Path | None:
    if options.no_records:
        return None
    chosen: Path | None = options.out
    return Path(f"runs/{name}-{recipe.run.name}") if chosen is None else chosen


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: {format_error(error)}. Pass a readable file with the token.") from None


def _check_address(url: str) -> None:
    """ConfigError for what can be no server's."""
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0:
            return
        problem = "has the port 0" if parts.hostname else "names no host"
    except ValueError as error:
        problem = f"is no address ({error})"
    raise ConfigError(f"{url} {problem}; give http://HOST:PORT") from None
