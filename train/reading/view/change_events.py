"""Server-sent events for changed runs.

    Watcher, every PERIOD_S: stamps of the runs ──changed──> the pending stamps of each open page ──> SSE

A page that does not read its events loses nothing: only the newest stamp of a run is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

Stamps = Mapping[str, str]
PERIOD_S: Final = 0.25
IDLE: Final = 10.0
"""The pause after a slow poll, as a multiple of its duration."""

PING_S: Final = 20.0
"""The time after which an idle stream sends a comment, so that no proxy closes it."""

MAX_PAGES: Final = 32


class TooManyPagesError(Exception):
    """The limit of open streams is reached."""


class OpenPage:
    """The unsent stamps of one stream, at most one per run."""

    def __init__(self) -> None:
        self._news: dict[str, str] = {}
        self._there = asyncio.Event()

    def tell(self, run: str, stamp: str) -> None:
        self._news[run] = stamp
        self._there.set()

    async def news(self) -> dict[str, str]:
        """Wait for changes and return them."""
        await self._there.wait()
        self._there.clear()
        told, self._news = self._news, {}
        return told


class RunWatcher:
    """Polls the runs while a page is open.

    Invariant: every open page gets every change of a stamp that lasts for one poll.
    """

    def __init__(self, look: Callable[[], Awaitable[Stamps]]) -> None:
        """look: returns the stamps of all runs by name."""
        self._look = look
        self._pages: set[OpenPage] = set()
        self._opened = asyncio.Event()
        self._seen: dict[str, str] = {}

    @contextmanager
    def watching(self) -> Iterator[OpenPage]:
        """Register a page. TooManyPagesError beyond MAX_PAGES."""
        if len(self._pages) >= MAX_PAGES:
            raise TooManyPagesError(f"{MAX_PAGES} pages are open already; close one")
        page = OpenPage()
        self._pages.add(page)
        self._opened.set()
        try:
            yield page
        finally:
            self._pages.discard(page)

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._opened.wait()
            if not self._pages:
                self._opened.clear()
                continue
            begun = loop.time()
            await self.look_once()
            await asyncio.sleep(max(PERIOD_S, IDLE * (loop.time() - begun)))

    async def look_once(self) -> None:
        """Send all pages the changes since the last poll."""
        stamps = dict(await self._look())
        gone = {run: "" for run in self._seen.keys() - stamps.keys()}
        for run, stamp in (stamps | gone).items():
            if self._seen.get(run) != stamp:
                for page in self._pages:
                    page.tell(run, stamp)
        self._seen = stamps
