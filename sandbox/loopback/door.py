"""Connections: how many, of whom, and how long one may say nothing.

    socket -> stranger -- first request with a right token --> guest of its owner
                 |  the oldest gives way when there are             |  DoorFull beyond its share
                 |  too many; closed after `header_s`               |  closed after `idle_s` without any,
                 |  without a whole request                         |  or of not taking what it asked for

Who says nothing can keep nobody out: strangers have room of their own, and what is the owners' is shared by
weight. When descriptors run out all the same, the door rests for a moment and goes on.
"""

import asyncio
import errno
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from rocstar.sandbox.loopback import user_of_peer
from rocstar.sandbox.loopback.shares import Shares

LOOK_S = 1.0
REST_S = 0.1
"""Without descriptors a new connection cannot even be refused; nobody is asked again for so long."""

ACCEPTED_AT_ONCE = 64
_NOT_LOOKED = 1 << 62

MAX_CONNECTIONS = 1024
HEADER_S, IDLE_S = 10.0, 75.0
"""Of a server that says nothing else."""

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class DoorFull(Exception):
    """All connections that an owner may have are busy; the message says how many."""


class Connection(asyncio.Protocol):
    """One client's connection, in front of the protocol that reads its requests. `owner`: None while it is a
    stranger's. `busy`: a request of it is being answered. `since_s`: when it became busy, or idle."""

    def __init__(self, door: "Door", inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.owner: str | None = None
        self.busy = False
        self.since_s = 0.0
        self.unread_bytes = _NOT_LOOKED
        self.peer_user: int | None = _NOT_LOOKED
        self.transport: asyncio.Transport
        self._door = door
        self.data_received = inner.data_received  # type: ignore[method-assign]  # a call less with each piece

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no subclass of asyncio's
        self._door.came(self)
        self.inner.connection_made(transport)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.left(self)
        self.inner.connection_lost(exc)

    def takes_nothing(self) -> bool:
        """Whether what was sent still waits to be read, as much as when this was last asked."""
        before, self.unread_bytes = self.unread_bytes, self.transport.get_write_buffer_size()
        return self.unread_bytes == 0 or self.unread_bytes >= before


class Door:
    """Invariants: at most `max_strangers` connections are of clients that have shown no token, and at most
    `max_guests` of others, of which each owner finds its share; none that is not busy lives for longer than
    `header_s` as a stranger's or `idle_s` as a guest's, unless its client takes what it asked for."""

    def __init__(
        self,
        *,
        max_guests: int,
        max_strangers: int,
        weights: Mapping[str, int],
        header_s: float,
        idle_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._max_strangers = max_strangers
        self._header_s = header_s
        self._idle_s = idle_s
        self._clock = clock
        self._shares = Shares(max_guests, weights)
        self._strangers: OrderedDict[Connection, None] = OrderedDict()  # in order of arrival
        self._guests: OrderedDict[Connection, None] = OrderedDict()  # that are not busy, longest first
        self._of: dict[object, Connection] = {}  # by inner protocol
        self._listening: list[socket.socket] = []
        self._coming: set[asyncio.Task[object]] = set()
        self.turned_away = 0
        """Connections that gave way to others, or said nothing for too long."""

    def __len__(self) -> int:
        return len(self._of)

    @classmethod
    def for_one(cls, max_connections: int = MAX_CONNECTIONS) -> "Door":
        """Of a server that has one owner, "": whoever has its token, or is let in without one."""
        return cls(
            max_guests=max(1, max_connections * 7 // 8),
            max_strangers=max(1, max_connections // 8),
            weights={},
            header_s=HEADER_S,
            idle_s=IDLE_S,
            clock=time.monotonic,
        )

    @asynccontextmanager
    async def opened(
        self, listening: Sequence[socket.socket], make_inner: Callable[[], asyncio.Protocol]
    ) -> AsyncIterator[None]:
        """Take connections while the block runs."""
        self.open(list(listening), make_inner)
        sweeper = asyncio.create_task(self.sweep_for_ever())
        try:
            yield
        finally:
            self.close()
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    # --- who comes and goes ------------------------------------------------------------------------------

    def came(self, connection: Connection) -> None:
        connection.since_s = self._clock()
        self._of[connection.inner] = connection
        self._strangers[connection] = None
        if len(self._strangers) > self._max_strangers:
            self._turn_away(next(iter(self._strangers)))

    def left(self, connection: Connection) -> None:
        if self._of.pop(connection.inner, None) is None:
            return
        self._strangers.pop(connection, None)
        self._guests.pop(connection, None)
        if connection.owner is not None:
            self._shares.give(connection.owner, 1)

    def begins(self, inner: object, owner: str | None) -> None:
        """A request has come: of `owner`, with the token, or None for one that needs none. Raises DoorFull if
        its owner's share of connections is taken by others of its own that are all busy."""
        connection = self._of.get(inner)
        if connection is None:
            return
        if owner is not None and connection.owner != owner:
            self._let_in(connection, owner)
        connection.busy = True
        connection.since_s = self._clock()
        self._guests.pop(connection, None)

    def ends(self, inner: object) -> None:
        """It is answered, as far as that is ours."""
        connection = self._of.get(inner)
        if connection is None or not connection.busy:
            return
        connection.busy = False
        connection.since_s = self._clock()
        connection.unread_bytes = _NOT_LOOKED
        if connection.owner is not None:
            self._guests[connection] = None

    def peer_user(self, inner: object) -> int | None:
        """The user whose process is at the other end, on this machine; None where that is not known."""
        connection = self._of.get(inner)
        if connection is None:
            return None
        if connection.peer_user == _NOT_LOOKED:
            connection.peer_user = user_of_peer(connection.transport)
        return connection.peer_user

    def _let_in(self, connection: Connection, owner: str) -> None:
        if not self._shares.fits(owner, 1):
            idle = next((guest for guest in self._guests if guest.owner == owner), None)
            if idle is None:
                most = self._shares.of(owner)
                raise DoorFull(f"{most} connections of yours have requests under way; use fewer of them")
            self._turn_away(idle)
        if connection.owner is not None:  # another's before: a proxy's, say
            self._shares.give(connection.owner, 1)
        self._strangers.pop(connection, None)
        connection.owner = owner
        self._shares.take(owner, 1)

    def sweep(self) -> None:
        """Closes those that said nothing for too long."""
        now_s = self._clock()
        late = [one for one in self._strangers if not one.busy and one.since_s + self._header_s <= now_s]
        reading: list[Connection] = []
        for guest in self._guests:
            if guest.since_s + self._idle_s > now_s:
                break
            (late if guest.takes_nothing() else reading).append(guest)
        for guest in reading:
            guest.since_s = now_s
            self._guests.move_to_end(guest)
        for connection in late:
            self._turn_away(connection)

    def _turn_away(self, connection: Connection) -> None:
        self.turned_away += 1
        self.left(connection)
        connection.transport.abort()

    # --- the sockets -------------------------------------------------------------------------------------

    def open(self, listening: list[socket.socket], make_inner: Callable[[], asyncio.Protocol]) -> None:
        """Takes connections from now on."""
        self._listening = listening
        self._make_inner = make_inner
        for one in listening:
            one.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Takes no more."""
        self._unwatch()
        for one in self._listening:
            one.close()
        self._listening = []

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK_S, self._header_s / 4))
            self.sweep()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._listening:
            loop.add_reader(one, self._accept, one)

    def _unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._listening:
            loop.remove_reader(one)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                if self._strangers:
                    self._turn_away(next(iter(self._strangers)))
                self._unwatch()
                loop.call_later(REST_S, self._watch)
                return
            accepted.setblocking(False)
            making = loop.create_task(
                loop.connect_accepted_socket(lambda: Connection(self, self._make_inner()), accepted)
            )
            self._coming.add(making)
            making.add_done_callback(self._coming.discard)
