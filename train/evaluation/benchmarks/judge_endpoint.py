"""The judge behind an OpenAI-compatible endpoint: messages in, its text out.

`ask` waits for one of CONCURRENT places, then for one response. It retries transient failures (no
connection, 408, 409, 429, 5xx, no response within TIMEOUT_S) up to TRIES times and never past the
deadline. The key is read from the environment for each request and appears in no record or message.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from rocstar.sandbox.http.bodies import read_at_most

KEY_VARIABLE = "ROCSTAR_JUDGE_KEY"
"""The environment variable that holds the key; without it, no key is sent."""
TEMPERATURE, MAX_TOKENS = 0.0, 4096
TIMEOUT_S, TRIES, CONCURRENT = 180.0, 5, 32
_PASSING = frozenset({408, 409, 429})
_MAX_ANSWER_BYTES = 4 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class JudgeFault(Exception):
    """The endpoint gave no judgement. `retryable`: a retry may succeed."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class JudgeEndpoint:
    """Requests one judgement per call. `url` ends with /v1; `pause` waits between tries."""

    def __init__(self, url: str, model: str, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.url, self.model, self._pause = url, model, pause
        self._room = asyncio.Semaphore(CONCURRENT)

    async def ask(self, messages: Sequence[Mapping[str, str]], *, deadline: float | None) -> str:
        """Return the judge's text.

        Raises:
            JudgeFault: the endpoint refused, or all tries failed.
            TimeoutError: `deadline`, a `loop.time()`, has passed.
        """
        async with asyncio.timeout_at(deadline), self._room:
            pause_s = _FIRST_PAUSE_S
            for _ in range(TRIES - 1):
                try:
                    return await self._ask_once(messages)
                except JudgeFault as fault:
                    if not fault.retryable:
                        raise
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return await self._ask_once(messages)

    async def _ask_once(self, messages: Sequence[Mapping[str, str]]) -> str:
        key = os.environ.get(KEY_VARIABLE)
        body = {"model": self.model, "messages": list(messages), "temperature": TEMPERATURE, "max_tokens": MAX_TOKENS}
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.post(
                    f"{self.url.rstrip('/')}/chat/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {key}"} if key else {},
                    allow_redirects=False,
                ) as answer,
            ):
                status, raw = answer.status, await read_at_most(answer.content, _MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise JudgeFault(
                f"{self.url} did not answer: {str(error) or type(error).__name__}", retryable=True
            ) from None
        except ValueError as error:
            raise JudgeFault(f"{self.url}: {error}", retryable=False) from None
        if status != 200:
            shown = raw[:200].decode("utf-8", "replace")
            if key:
                shown = shown.replace(key, "***")
            raise JudgeFault(f"{self.url} answered {status}: {shown}", retryable=status in _PASSING or status >= 500)
        try:
            text: Any = json.loads(raw)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise JudgeFault(f"{self.url} answered without choices[0].message.content", retryable=True)
        return text
