"""Connections: who says nothing keeps nobody out, and no owner another."""

import asyncio
import errno
import socket
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import StreamReader

from rocstar.sandbox.http.connections import Connection, ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.guard import Owner, Owners
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.testing import FakeSandbox, ok
from rocstar.sandbox.types import ExecRequest, ExecResult

from ...patience import PATIENCE_S


class Pipe(asyncio.Transport):
    """What a connection writes to. `unread`: what its client has not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.unread = 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread


class Hall:
    """A door with a clock that stands still until it is told otherwise."""

    def __init__(self, *, guests: int = 100, strangers: int = 100, **weights: int) -> None:
        self.now_s = 0.0
        self.connections = ConnectionLimiter(
            OwnerBudget(guests, weights),
            strangers,
            header_s=10.0,
            idle_s=75.0,
            clock=lambda: self.now_s,
        )

    def come(self, owner: str | None = None, *, rests: bool = False) -> tuple[Connection, Pipe]:
        pipe = Pipe()
        connection = Connection(self.connections, asyncio.Protocol())
        connection.connection_made(pipe)
        if owner is not None:
            self.connections.begin_request(connection.inner, owner)
        if rests:
            self.connections.end_request(connection.inner)
        return connection, pipe

    def after(self, seconds: float) -> None:
        self.now_s += seconds
        self.connections.sweep()


def test_a_stranger_has_ten_seconds_for_a_request() -> None:
    hall = Hall()
    _, silent = hall.come()
    _, asking = hall.come("a")
    hall.after(9.9)
    assert not silent.aborted
    hall.after(0.2)
    assert silent.aborted and not asking.aborted and len(hall.connections) == 1


def test_strangers_give_way_to_strangers_and_guests_to_none_of_them() -> None:
    hall = Hall(strangers=3)
    _, guest = hall.come("a", rests=True)
    pipes = [hall.come()[1] for _ in range(10)]
    assert [pipe.aborted for pipe in pipes] == [True] * 7 + [False] * 3 and not guest.aborted
    assert hall.connections.turned_away == 7


def test_an_owner_finds_its_share_of_connections_however_many_another_keeps_busy() -> None:
    hall = Hall(guests=40, a=1, b=1)
    for _ in range(30):
        hall.come("a")
    with pytest.raises(ConnectionsExhausted):
        hall.come("a")
    for _ in range(10):
        hall.come("b")
    with pytest.raises(ConnectionsExhausted):
        hall.come("b")


def test_beyond_its_share_an_owners_own_idle_connection_gives_way() -> None:
    hall = Hall(guests=2)
    (_, first), (_, second) = hall.come("a", rests=True), hall.come("a", rests=True)
    hall.come("a")
    assert first.aborted and not second.aborted


def test_a_connection_that_rests_is_closed_and_one_that_works_is_not() -> None:
    hall = Hall()
    _, resting = hall.come("a", rests=True)
    working, pipe = hall.come("a")
    hall.after(76)
    assert resting.aborted and not pipe.aborted
    hall.connections.end_request(working.inner)
    hall.after(74)
    assert not pipe.aborted
    hall.after(2)
    assert pipe.aborted


def test_who_takes_its_answer_slowly_is_waited_for_and_who_takes_nothing_is_not() -> None:
    hall = Hall()
    (_, slow), (_, stuck) = hall.come("a", rests=True), hall.come("a", rests=True)
    slow.unread = stuck.unread = 1000
    for left in (800, 600, 400):
        hall.after(76)
        assert not slow.aborted
        slow.unread = left
    assert stuck.aborted


def test_whoever_leaves_gives_its_place_back() -> None:
    hall = Hall(guests=1)
    for _ in range(3):
        connection, _ = hall.come("a")
        connection.connection_lost(None)
        hall.connections.end_request(connection.inner)
    assert len(hall.connections) == 0


TOKENS = Owners(tuple(Owner(name=name, token=f"token-of-{name}-0123456789") for name in ("one", "two")))


def head(path: str, owner: str) -> bytes:
    token = f"token-of-{owner}-0123456789"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n".encode()


async def test_half_requests_are_closed_and_others_served_meanwhile(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok("1\n"))
    async with serve(fake, owners=TOKENS, max_connections=32, header_timeout_s=0.2) as service:
        halves = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(40)]
        for _, writer in halves:
            writer.write(head("/v1/run", "one"))
        right = {"Authorization": "Bearer token-of-two-0123456789"}
        assert (await service.post("/v1/run", {"code": "x"}, headers=right))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            for reader, writer in halves:
                with suppress(ConnectionError):  # or an end, which is as good
                    assert await reader.read() == b""
                writer.close()


async def test_without_descriptors_the_door_rests_and_goes_on(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_little_is_read_of_what_follows_a_request_that_is_answered(serve: Any, until: Any) -> None:
    """A connection that waited for one program held 32 requests more, a megabyte of headers each."""
    gate, fake = asyncio.Event(), FakeSandbox({}, otherwise=ok("1\n"))

    class Gated(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
            await gate.wait()
            return await fake.run(request, deadline=deadline)

    async with serve(Gated({})) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        head = b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n"
        for _ in range(40):
            writer.write(head + b"X-Long: %b\r\n" % (b"x" * 8000) * 8 + b'\r\n{"code":"x"}')
        await until(lambda: service.service.metrics.in_flight)
        (protocol,) = service.service.connections._of
        await until(lambda: not protocol.transport.is_reading())
        assert len(protocol._messages) <= 2
        gate.set()
        for _ in range(40):
            assert b" 200 " in await reader.readuntil(b'"displays":[]}')
        writer.close()
        assert len(fake.requests) == 40


async def test_a_body_of_tiny_chunks_is_read_in_turns(
    serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,000 of a byte each took 34 ms of everybody's."""
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
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        watching = asyncio.create_task(watch())
        head = b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n" * 40_000)
        await until(lambda: chunks == 40_000)
        watching.cancel()
        writer.close()
    assert most <= 10_000
