"""Connection limits: count, share of each owner and idle timeout.

    socket -> anonymous -- first authenticated request --> connection of an owner
                 |  the oldest is closed when there are      |  ConnectionLimit beyond the owner's share
                 |  too many; closed after `header_s`        |  closed after `idle_s` without a request, or
                 |  without a whole request                  |  without reading its response

Idle clients cannot block other clients: anonymous connections have their own limit, and the connections of
owners are shared by weight. When the process runs out of descriptors, it pauses accepting for a moment.
"""

import asyncio
import errno
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rocstar.sandbox.http.guard import Owners, find_peer_user
from rocstar.sandbox.http.owner_budget import OwnerBudget

LOOK_S = 1.0
REST_S = 0.1
"""The pause of accepting without descriptors, when a new connection cannot even be rejected."""

ACCEPTED_AT_ONCE = 64
_NOT_LOOKED = 1 << 62
MAX_CONNECTIONS = 1024
HEADER_S, IDLE_S = 10.0, 75.0
"""The defaults of a server."""

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ConnectionsExhausted(Exception):
    """All connections that an owner may have are busy."""


class Connection(asyncio.Protocol):
    """The connection of a client, in front of the protocol that parses its requests. `owner`: None before the
    first authenticated request. `busy`: a request is being handled. `since_s`: the time when it became busy
    or idle."""

    def __init__(self, connections: "ConnectionLimiter", inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.owner: str | None = None
        self.busy = False
        self.since_s = 0.0
        self.unread_bytes = _NOT_LOOKED
        self.peer_user: int | None = _NOT_LOOKED
        self.transport: asyncio.Transport
        self._connections = connections
        # Forwarded without a call of this class.
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no subclass of asyncio's
        self._connections.add(self)
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self.inner.connection_lost(exc)


@dataclass(eq=False)
class ConnectionLimiter:
    """turned_away: connections that gave way to others, or sent nothing for too long.

    Invariants: at most `max_anonymous` connections are not authenticated, and at most the total of `owned`
    are; an idle connection lives for at most `header_s` if it is anonymous, else `idle_s`, unless its client
    is still reading a response.
    """

    owned: OwnerBudget
    max_anonymous: int
    header_s: float = HEADER_S
    idle_s: float = IDLE_S
    clock: Callable[[], float] = time.monotonic
    turned_away: int = 0
    _anonymous: OrderedDict[Connection, None] = field(default_factory=OrderedDict)  # in order of arrival
    # Those that are not busy, longest first.
    _idle_owned: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    _of: dict[object, Connection] = field(default_factory=dict)  # by inner protocol
    _listening: list[socket.socket] = field(default_factory=list)
    _coming: set[asyncio.Task[object]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._of)

    @classmethod
    def shared(
        cls, max_connections: int = MAX_CONNECTIONS, owners: Owners | None = None, **timeouts_s: Any
    ) -> "ConnectionLimiter":
        """Return the limiter of a server: seven eighths of the connections are for its owners."""
        owned = (owners or Owners()).budget(max(1, max_connections * 7 // 8))
        return cls(owned, max(1, max_connections // 8), **timeouts_s)

    @asynccontextmanager
    async def opened(
        self, listening: Sequence[socket.socket], make_inner: Callable[[], asyncio.Protocol]
    ) -> AsyncIterator[None]:
        """Take connections while the block runs."""
        self.open(list(listening), make_inner)
        sweeper = asyncio.create_task(self.run_sweeper())
        try:
            yield
        finally:
            self.close()
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    # --- requests and connections ---

    def add(self, connection: Connection) -> None:
        connection.since_s = self.clock()
        self._of[connection.inner] = connection
        self._anonymous[connection] = None
        if len(self._anonymous) > self.max_anonymous:
            self._drop(next(iter(self._anonymous)))

    def remove(self, connection: Connection) -> None:
        if self._of.pop(connection.inner, None) is None:
            return
        self._anonymous.pop(connection, None)
        self._idle_owned.pop(connection, None)
        if connection.owner is not None:
            self.owned.give(connection.owner, 1)

    def begin_request(self, inner: object, owner: str | None) -> None:
        """Mark the connection as busy with a request of `owner`, None if the request needs no token. Raises
        ConnectionsExhausted if all connections of the owner are busy."""
        connection = self._of.get(inner)
        if connection is None:
            return
        if owner is not None and connection.owner != owner:
            self._assign_owner(connection, owner)
        connection.busy = True
        connection.since_s = self.clock()
        self._idle_owned.pop(connection, None)

    def end_request(self, inner: object) -> None:
        """Mark the connection as idle."""
        connection = self._of.get(inner)
        if connection is None or not connection.busy:
            return
        connection.busy = False
        connection.since_s = self.clock()
        connection.unread_bytes = _NOT_LOOKED
        if connection.owner is not None:
            self._idle_owned[connection] = None

    def peer_user(self, inner: object) -> int | None:
        """The user whose process is at the other end, on this machine; None where that is not known."""
        connection = self._of.get(inner)
        if connection is None:
            return None
        if connection.peer_user == _NOT_LOOKED:
            connection.peer_user = find_peer_user(connection.transport)
        return connection.peer_user

    def _assign_owner(self, connection: Connection, owner: str) -> None:
        if not self.owned.fits(owner, 1):
            idle = next((one for one in self._idle_owned if one.owner == owner), None)
            if idle is None:
                most = self.owned.used_by(owner)
                raise ConnectionsExhausted(f"{most} connections of yours have requests under way; use fewer of them")
            self._drop(idle)
        if connection.owner is not None:  # another's before: a proxy's, say
            self.owned.give(connection.owner, 1)
        self._anonymous.pop(connection, None)
        connection.owner = owner
        self.owned.take(owner, 1)

    def sweep(self) -> None:
        """Closes those that sent nothing for too long."""
        now_s = self.clock()
        late = [one for one in self._anonymous if not one.busy and one.since_s + self.header_s <= now_s]
        reading: list[Connection] = []
        for one in self._idle_owned:
            if one.since_s + self.idle_s > now_s:
                break
            before, one.unread_bytes = one.unread_bytes, one.transport.get_write_buffer_size()
            is_stalled = one.unread_bytes == 0 or one.unread_bytes >= before
            (late if is_stalled else reading).append(one)
        for one in reading:
            one.since_s = now_s
            self._idle_owned.move_to_end(one)
        for connection in late:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self.turned_away += 1
        self.remove(connection)
        connection.transport.abort()

    # --- the sockets -------------------------------------------------------------------------------------

    def open(self, listening: list[socket.socket], make_inner: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections from now on."""
        self._listening = listening
        self._make_inner = make_inner
        for one in listening:
            one.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Stop accepting."""
        self._unwatch()
        for one in self._listening:
            one.close()
        self._listening = []

    async def run_sweeper(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK_S, self.header_s / 4))
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
                if self._anonymous:
                    self._drop(next(iter(self._anonymous)))
                self._unwatch()
                loop.call_later(REST_S, self._watch)
                return
            accepted.setblocking(False)
            making = loop.create_task(
                loop.connect_accepted_socket(lambda: Connection(self, self._make_inner()), accepted)
            )
            self._coming.add(making)
            making.add_done_callback(self._coming.discard)
