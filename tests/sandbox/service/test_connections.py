"""Limits of connections: idle clients keep no others out, and an owner keeps out no other owner."""

import asyncio
import errno
import socket
from typing import Any

import pytest
from aiohttp import StreamReader

from rocstar.sandbox.http.connections import Connection, ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.owner_budget import OwnerBudget
from tests.fakes.sandbox import FakeSandbox, ok

from .conftest import HeldSandbox, request_bytes


class Transport(asyncio.Transport):
    """unread: the bytes that the client has not read."""

    aborted = False
    unread = 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread


class Clients:
    """Connections to a limiter whose clock only `after` moves."""

    def __init__(self, *, owned: int = 100, anonymous: int = 100, **weights: int) -> None:
        self.now_s = 0.0
        self.connections = ConnectionLimiter(
            OwnerBudget(owned, weights), anonymous, header_s=10.0, idle_s=75.0, clock=lambda: self.now_s
        )

    def open(self, owner: str | None = None, *, idle: bool = False) -> Any:
        """Return the connection, after a request if it has an owner."""
        connection = Connection(self.connections, asyncio.Protocol())
        connection.connection_made(Transport())
        if owner is not None:
            self.connections.begin_request(connection.inner, owner)
        if idle:
            self.connections.end_request(connection.inner)
        return connection

    def after(self, seconds: float) -> None:
        self.now_s += seconds
        self.connections.sweep()


def closed(*connections: Any) -> list[bool]:
    return [connection.transport.aborted for connection in connections]


def test_a_stranger_has_ten_seconds_for_a_request() -> None:
    clients = Clients()
    silent, asking = clients.open(), clients.open("a")
    clients.after(9.9)
    assert closed(silent) == [False]
    clients.after(0.2)
    assert closed(silent, asking) == [True, False] and len(clients.connections) == 1


def test_strangers_give_way_to_strangers_and_guests_to_none_of_them() -> None:
    clients = Clients(anonymous=3)
    owned = clients.open("a", idle=True)
    anonymous = [clients.open() for _ in range(10)]
    assert closed(owned, *anonymous) == [False] + [True] * 7 + [False] * 3
    assert clients.connections.turned_away == 7


def test_an_owner_finds_its_share_of_connections_however_many_another_keeps_busy() -> None:
    clients = Clients(owned=40, a=1, b=1)
    for owner, number in (("a", 30), ("b", 10)):
        for _ in range(number):
            clients.open(owner)
        with pytest.raises(ConnectionsExhausted):
            clients.open(owner)


def test_beyond_its_share_an_owners_own_idle_connection_gives_way() -> None:
    clients = Clients(owned=2)
    first, second = clients.open("a", idle=True), clients.open("a", idle=True)
    clients.open("a")
    assert closed(first, second) == [True, False]


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    clients = Clients()
    idle, busy = clients.open("a", idle=True), clients.open("a")
    clients.after(76)
    assert closed(idle, busy) == [True, False]
    clients.connections.end_request(busy.inner)
    clients.after(74)
    assert closed(busy) == [False]
    clients.after(2)
    assert closed(busy) == [True]


def test_who_takes_its_answer_slowly_is_waited_for_and_who_takes_nothing_is_not() -> None:
    clients = Clients()
    slow, stuck = clients.open("a", idle=True), clients.open("a", idle=True)
    slow.transport.unread = stuck.transport.unread = 1000
    for left in (800, 600, 400):
        clients.after(76)
        assert closed(slow) == [False]
        slow.transport.unread = left
    assert closed(stuck) == [True]


def test_a_lost_connection_gives_its_place_back() -> None:
    clients = Clients(owned=1)
    for _ in range(3):
        connection = clients.open("a")
        connection.connection_lost(None)
        clients.connections.end_request(connection.inner)
    assert len(clients.connections) == 0


async def test_without_descriptors_accepting_pauses(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's own server closes its socket for good when a connection cannot be accepted."""
    lacking = 3
    real = socket.socket.accept

    def accept(self: socket.socket) -> Any:
        nonlocal lacking
        if lacking:
            lacking -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        assert (await service.get("/healthz"))[0] == 200
    assert lacking == 0


async def test_few_pipelined_requests_are_parsed_ahead(serve: Any, until: Any) -> None:
    """By default aiohttp parses 32, each of which may have a megabyte of headers."""
    held = HeldSandbox()
    async with serve(held) as service:
        long = (f"X-Long: {'x' * 8000}",) * 8
        reader, writer = await service.send(request_bytes("/v1/run", {"code": "x"}, *long) * 40)
        await held.until_running(1)
        (protocol,) = service.service.connections._of
        await until(lambda: not protocol.transport.is_reading())
        assert len(protocol._messages) <= 2
        held.gate.set()
        for _ in range(40):
            assert b" 200 " in await reader.readuntil(b'"displays":[]}')
        writer.close()
        assert len(held.requests) == 40


async def test_a_body_of_tiny_chunks_is_read_in_turns(serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 of a byte each take 34 ms."""
    chunks = most = before = 0

    def begin(stream: StreamReader) -> None:
        nonlocal chunks
        chunks += 1
        began(stream)

    async def watch() -> None:
        nonlocal most, before
        while True:
            most, before = max(most, chunks - before), chunks
            await asyncio.sleep(0)

    began = StreamReader.begin_http_chunk_receiving
    monkeypatch.setattr(StreamReader, "begin_http_chunk_receiving", begin)
    async with serve(FakeSandbox({})) as service:
        watching = asyncio.create_task(watch())
        head = request_bytes("/v1/run", None, "Transfer-Encoding: chunked")
        _, writer = await service.send(head + b"1\r\nx\r\n" * 40_000)
        await until(lambda: chunks == 40_000)
        watching.cancel()
        writer.close()
    assert most <= 10_000
