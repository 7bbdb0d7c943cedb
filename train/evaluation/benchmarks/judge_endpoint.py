"""The judge behind an OpenAI-compatible endpoint: messages in, its text out.

`ask` waits for one of `concurrent` places, then for one response. It retries transient failures (no
connection, 408, 409, 429, 5xx, no response within `timeout_s`) up to `tries` times and never past the
deadline. The key is read from the environment for each request and appears in no record or message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

_PASSING = frozenset({408, 409, 429})
_MAX_ANSWER_BYTES = 4 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class JudgeFault(Exception):
    """The endpoint gave no judgement. `retryable`: a retry may succeed."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """The endpoint and its request parameters."""

    url: str
    """up to and with /v1"""
    model: str = "gpt-4-1106-preview"
    key_variable: str = "ROCSTAR_JUDGE_KEY"
    """the environment variable that holds the key; without it, no key is sent"""
    temperature: float = 0.0
    max_tokens: int = 4096
    timeout_s: float = 180.0
    tries: int = 5
    concurrent: int = 32


class JudgeEndpoint:
    """Requests one judgement per call. `pause` waits between tries."""

    def __init__(
        self, options: EndpointOptions, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.options = options
        self._pause = pause
        self._room = asyncio.Semaphore(options.concurrent)

    async def ask(self, messages: Sequence[Mapping[str, str]], *, deadline: float | None) -> str:
        """Return the judge's text.

        Raises:
            JudgeFault: the endpoint refused, or all tries failed.
            TimeoutError: `deadline`, a `loop.time()`, has passed.
        """
        async with asyncio.timeout_at(deadline), self._room:
            pause_s = _FIRST_PAUSE_S
            for left in reversed(range(self.options.tries)):
                try:
                    return await self._ask_once(messages)
                except JudgeFault as fault:
                    if not (fault.retryable and left):
                        raise
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise JudgeFault("tries is 0. Set it to 1 or more.", retryable=False)

    async def _ask_once(self, messages: Sequence[Mapping[str, str]]) -> str:
        options = self.options
        key = os.environ.get(options.key_variable)
        body = {
            "model": options.model,
            "messages": list(messages),
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
        }
        limit = aiohttp.ClientTimeout(total=options.timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.post(
                    f"{options.url.rstrip('/')}/chat/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {key}"} if key else {},
                    allow_redirects=False,
                ) as answer,
            ):
                status, raw = answer.status, b""
                async for chunk in answer.content.iter_chunked(1 << 16):
                    raw += chunk
                    if len(raw) > _MAX_ANSWER_BYTES:
                        raise JudgeFault(
                            f"{options.url} answers with over {_MAX_ANSWER_BYTES} bytes", retryable=False
                        )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise JudgeFault(
                f"{options.url} did not answer: {error or type(error).__name__}", retryable=True
            ) from None
        if status != 200:
            shown = raw[:200].decode("utf-8", "replace")
            if key:
                shown = shown.replace(key, "***")
            raise JudgeFault(
                f"{options.url} answered {status}: {shown}", retryable=status in _PASSING or status >= 500
            )
        return _text_of(raw, options.url)


def _text_of(raw: bytes, url: str) -> str:
    try:
        found: Any = json.loads(raw)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise JudgeFault(f"{url} answered without choices[0].message.content", retryable=True)
    return found
