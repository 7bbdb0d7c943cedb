"""Listening sockets: TCP addresses and Unix sockets, and their command-line options."""

import argparse
import contextlib
import errno
import grp
import os
import socket
import stat
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.command_line import add_options

BACKLOG = 4096
LOOPBACK = ("127.0.0.1", "::1")
EVERY_ADDRESS = ("", "::")
PORT_TRIES = 16
"""A port that is free in one family may be taken in the other."""

_NO_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """hosts: () = loopback of both families, or none where there is a `unix` path. port: 0 = one that is free
    for all hosts. unix_group: the group whose users may connect; "" = this user alone."""

    hosts: tuple[str, ...] = ()
    port: int
    unix: str = ""
    unix_group: str = ""

    @property
    def tcp_hosts(self) -> tuple[str, ...]:
        return self.hosts or (() if self.unix else LOOPBACK)


_OPTIONS = tomllib.loads(Path(__file__).with_name("listening.toml").read_text(encoding="utf-8"))


def add_listening_options(parser: argparse._ActionsContainer, port: int) -> None:
    """`parse_address` reads them, `tokens.read_owners` the token file."""
    entries = _OPTIONS["listening"]
    add_options(parser, {**entries, "--port": {**entries["--port"], "default": port}})


def add_access_log_options(parser: argparse._ActionsContainer) -> None:
    """Read `--trusted-proxy` by `access.networks`."""
    add_options(parser, _OPTIONS["access_log"])


def parse_address(options: argparse.Namespace) -> Address:
    """Raises ValueError for options that do not go together."""
    if options.unix_group and not options.unix:
        raise ValueError(f"--unix-group {options.unix_group}: of a Unix socket; give --unix PATH, too")
    return Address(hosts=tuple(options.host), port=options.port, unix=options.unix, unix_group=options.unix_group)


def bind(address: Address) -> list[socket.socket]:
    """Return bound sockets, which refuse connections until `listen` is called on them. Raises ValueError."""
    for _ in range(PORT_TRIES - 1 if address.port == 0 else 0):
        if bound := _bind(address):
            return bound
    return _bind(address, last_try=True)


def _bind(address: Address, *, last_try: bool = False) -> list[socket.socket]:
    """Return bound sockets, or [] if the port that one family gave is taken in the other, unless it is the
    last try. Raises ValueError."""
    bound: list[socket.socket] = []
    port = address.port
    with contextlib.ExitStack() as opened:
        for family, host in _resolve_addresses(address):
            try:
                bound.append(opened.enter_context(_bind_tcp(family, host, port)))
            except OSError as error:
                if bound and not address.hosts and error.errno in _NO_FAMILY:
                    continue  # a machine without IPv6
                if not last_try and bound and error.errno == errno.EADDRINUSE:
                    return []
                raise ValueError(format_listen_error(host, port, error)) from None
            port = bound[0].getsockname()[1]
        if address.unix:
            bound.append(opened.enter_context(_bind_unix(address.unix, address.unix_group)))
        opened.pop_all()  # all are bound: none is closed here
    return bound


def format_listen_error(host: str, port: int, error: OSError) -> str:
    """Return the message for an address in use. asyncio's own text has a Python tuple."""
    reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
    return f"cannot listen on {host}:{port}: {reason}; pass another --port, or --port 0 for a free one"


def _resolve_addresses(address: Address) -> list[tuple[int, str]]:
    """Family and numeric address of each socket. Raises ValueError."""
    places: dict[tuple[int, str], None] = {}
    for host in address.tcp_hosts:
        name = None if host in EVERY_ADDRESS else host
        try:
            found = socket.getaddrinfo(name, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise ValueError(
                f"cannot listen on {host}: {error.strerror}; pass an address of this machine as --host"
            ) from None
        places.update(((family, str(place[0])), None) for family, _, _, _, place in found)
    return list(places)


def _bind_tcp(family: int, host: str, port: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((host, port))
    except OSError:
        one.close()
        raise
    return one


def _bind_unix(path: str, group: str) -> socket.socket:
    """Replace a socket that nothing listens on. Raises ValueError."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        group_id = grp.getgrnam(group).gr_gid if group else -1
        _remove_stale(path)
        one.bind(path)
        if group:
            os.chown(path, -1, group_id)
        os.chmod(path, 0o660 if group else 0o600)  # before `listen`
    except (OSError, KeyError) as error:
        one.close()
        why = error.strerror or str(error) if isinstance(error, OSError) else f"there is no group {group!r}"
        raise ValueError(f"cannot listen on --unix {path}: {why}; give a path in a folder of yours") from None
    return one


def _remove_stale(path: str) -> None:
    """Remove a socket on which no process listens. Raises OSError for one in use, and for another file."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "a file that is not a socket exists")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            if probe.connect_ex(path) != errno.ECONNREFUSED:
                raise OSError(errno.EADDRINUSE, "a process listens on it")
        os.unlink(path)


def listen(bound: Sequence[socket.socket]) -> list[str]:
    """Start listening. Return the name of each socket: http://HOST:PORT, or unix:PATH."""
    names = []
    for one in bound:
        one.listen(BACKLOG)
        name = one.getsockname()
        if one.family == socket.AF_UNIX:
            names.append(f"unix:{name}")
        else:
            host = f"[{name[0]}]" if one.family == socket.AF_INET6 else name[0]
            names.append(f"http://{host}:{name[1]}")
    return names
