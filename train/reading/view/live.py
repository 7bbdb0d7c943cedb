"""What changed, told to the pages that are open: an event when a run has more to show, and else silence.

    Watcher, every PERIOD_S: stamps of the runs ──changed──> the news of each open page ──> SSE

A page that does not take its events loses none that matters: what it is told is only the newest stamp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

Stamps = Mapping[str, str]
PERIOD_S: Final = 0.25
IDLE: Final = 10.0
"""After a look that took long, as with hundreds of runs, so many times as long nothing is looked at."""
PING_S: Final = 20.0
"""A stream that is quiet for so long gets a comment, so that nobody on the way closes it."""
MAX_PAGES: Final = 32


class TooManyPagesError(Exception):
    """So many pages watch that another one is refused."""


class OpenPage:
    """The page of one stream: the stamps that it was not told yet, at most one for each run."""

    def __init__(self) -> None:
        self._news: dict[str, str] = {}
        self._there = asyncio.Event()

    def tell(self, run: str, stamp: str) -> None:
        self._news[run] = stamp
        self._there.set()

    async def news(self) -> dict[str, str]:
        """What changed since the last time; waits for something."""
        await self._there.wait()
        self._there.clear()
        told, self._news = self._news, {}
        return told


class Watcher:
    """Looks at the runs for as long as a page is open.

    Invariant: every open page is told of every change of a stamp that lasts as long as a look.
    """

    def __init__(self, look: Callable[[], Awaitable[Stamps]]) -> None:
        """`look` gives the stamps of all runs by name."""
        self._look = look
        self._pages: set[OpenPage] = set()
        self._opened = asyncio.Event()
        self._seen: dict[str, str] = {}

    @contextmanager
    def watching(self) -> Iterator[OpenPage]:
        """A page that is told. TooManyPagesError beyond MAX_PAGES."""
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
        """Tell all pages what changed since the last look."""
        stamps = dict(await self._look())
        gone = {run: "" for run in self._seen.keys() - stamps.keys()}
        for run, stamp in (stamps | gone).items():
            if self._seen.get(run) != stamp:
                for page in self._pages:
                    page.tell(run, stamp)
        self._seen = stamps
