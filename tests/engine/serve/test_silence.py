"""A stream that has nothing to tell still says something, through whatever stands between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from .conftest import QUESTION, Serving, SlowTool, call, of_stream, scripted, without_ids

BODY = {"model": "rocstar-agent", "messages": [QUESTION], "stream": True, "seed": 1}
THINKS = [call("2+2"), "So <answer>4</answer>"]


@dataclass(kw_only=True)
class Proxy:
    """Passes bytes on. It ends a connection on which nothing came between two of its `looks`, as a proxy with
    an idle limit does; the test says when it looks."""

    heard: int = 0
    """Times that bytes came from the server."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @asynccontextmanager
    async def before(self, host: str, port: int) -> AsyncIterator[str]:
        async def passes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(host, port)
            self.writers += [writer, there[1]]

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, metrics: bool) -> None:
                while data := await source.read(1 << 16):
                    self.heard += metrics
                    sink.write(data)
                    await sink.drain()
                sink.close()

            await asyncio.gather(pump(reader, there[1], False), pump(there[0], writer, True))

        async with await asyncio.start_server(passes, "127.0.0.1", 0) as server:
            try:
                yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            finally:
                for writer in self.writers:
                    writer.close()

    async def look(self, until: Callable[..., Any], *, times: int) -> None:
        """As often as that: something has come since the last look, or it would have ended the connection."""
        for _ in range(times):
            before = self.heard
            await until(lambda before=before: self.heard > before)


async def test_a_proxy_with_an_idle_limit_never_sees_an_idle_stream(serving: Serving, until: Any) -> None:
    """A tool that takes a hundred times as long as the server is ever silent: pings come through, and no more
    of the answer than there is."""
    tool, proxy = SlowTool(), Proxy()
    async with serving(scripted(THINKS), tool=tool, ping_s=0.001) as client:
        address = client.listening.url.removeprefix("http://").split(":")
        async with proxy.before(address[0], int(address[1])) as url, aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/chat/completions", json=BODY) as response:
                assert response.status == 200
                await tool.began.wait()
                await proxy.look(until, times=100)
                tool.gate.set()
                text = (await response.read()).decode()
        whole = await client.chat(seed=1)
    lines = [line for line in text.splitlines() if line]
    assert lines.count(": ping") >= 20 and lines[-1] == "data: [DONE]"
    assert without_ids(of_stream(chunks(lines))) == without_ids(whole["choices"][0]["message"])


def chunks(lines: list[str]) -> list[Any]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
