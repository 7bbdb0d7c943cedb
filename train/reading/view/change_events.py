"""Server-sent events for changed runs.

    Watcher, every PERIOD_S: stamps of the runs ──changed──> the pending stamps of each open page ──> SSE

A page that does not read its events loses nothing: only the newest stamp of a run is pending.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from aiohttp import web

PERIOD_S: Final = 0.25
IDLE: Final = 10.0
"""The pause after a slow poll, as a multiple of its duration."""

PING_S: Final = 20.0
"""The time after which an idle stream sends a comment, so that no proxy closes it."""

MAX_PAGES: Final = 32


class OpenPage:
    """The unsent stamps of one stream, at most one per run."""

    def __init__(self) -> None:
        self._unsent: dict[str, str] = {}
        self._has_unsent = asyncio.Event()

    def add(self, run: str, stamp: str) -> None:
        self._unsent[run] = stamp
        self._has_unsent.set()

    async def news(self) -> dict[str, str]:
        """Wait for changes and return them."""
        await self._has_unsent.wait()
        self._has_unsent.clear()
        changes, self._unsent = self._unsent, {}
        return changes


class RunWatcher:
    """Polls the runs while a page is open.

    Invariant: every open page gets every change of a stamp that lasts for one poll.
    """

    def __init__(self, read_stamps: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """read_stamps: returns the stamps of all runs by name."""
        self._read_stamps = read_stamps
        self._pages: set[OpenPage] = set()
        self._opened = asyncio.Event()
        self._seen: dict[str, str] = {}

    @contextmanager
    def watching(self) -> Iterator[OpenPage]:
        """Register a page. HTTPServiceUnavailable beyond MAX_PAGES."""
        if len(self._pages) >= MAX_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MAX_PAGES} pages are open already; close one")
        page = OpenPage()
        self._pages.add(page)
        self._opened.set()
        try:
            yield page
        finally:
            self._pages.discard(page)

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._opened.wait()
            if not self._pages:
                self._opened.clear()
                continue
            begun = loop.time()
            await self.poll()
            await asyncio.sleep(max(PERIOD_S, IDLE * (loop.time() - begun)))

    async def poll(self) -> None:
        """Send all pages the changes since the last poll."""
        stamps = dict(await self._read_stamps())
        gone = {run: "" for run in self._seen.keys() - stamps.keys()}
        for run, stamp in (stamps | gone).items():
            if self._seen.get(run) != stamp:
                for page in self._pages:
                    page.add(run, stamp)
        self._seen = stamps
