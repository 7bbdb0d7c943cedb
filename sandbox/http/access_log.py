"""The access log of a server: a line per request with its client, owner and duration."""

import ipaddress
import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from rocstar.sandbox.http.printable import printable_line

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_CHARS = 2000
"""The longest text of a client in a line."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the values of `--trusted-proxy`: addresses, or networks such as 10.0.0.0/8. Raises ValueError."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ValueError(
                f"--trusted-proxy {text}: no address or network; give 10.0.0.7 or 10.0.0.0/8, say"
            ) from None
    return tuple(found)


def access_log(is_wanted: bool, name: str) -> logging.Logger | None:
    """Return a logger that writes to standard error, or None if no log is wanted."""
    if not is_wanted:
        return None
    log = logging.getLogger(name)
    log.setLevel(logging.INFO)
    log.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    log.handlers = [handler]
    return log


def make_access_logger(
    owner_of: Callable[[web.BaseRequest], str], trusted: tuple[Network, ...]
) -> type[AbstractAccessLogger]:
    """The class that aiohttp makes an object of for each connection."""
    return type("Logged", (AccessLogger,), {"proxies": trusted, "owner_of": staticmethod(owner_of)})


class AccessLogger(AbstractAccessLogger):
    """`CLIENT OWNER "REQUEST" STATUS BYTES SECONDS "REFERER" "USER-AGENT"`, with - for an unknown part."""

    proxies: ClassVar[tuple[Network, ...]]
    owner_of: ClassVar[Any]
    """Returns the owner of a request, or "" if unknown."""

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Write the line."""
        version = f"{request.version.major}.{request.version.minor}"
        line = _quote(f"{request.method} {request.path_qs} HTTP/{version}")
        referer, agent = (_quote(request.headers.get(name, "-")) for name in ("Referer", "User-Agent"))
        self.logger.info(
            f"{find_client_address(request, self.proxies)} {self.owner_of(request) or '-'} {line} "
            f"{response.status} {response.body_length} {time:.3f} {referer} {agent}"
        )


def find_client_address(request: web.BaseRequest, proxies: tuple[Network, ...]) -> str:
    """Return the address of the client. For a trusted peer or a Unix socket it is the last address in the
    forwarding headers that is not a trusted proxy; "unix" for a Unix socket without such headers."""
    peer = request.remote or ""
    client = peer or "unix"
    if peer and not _is_trusted(peer, proxies):
        return client
    if lines := request.headers.getall("X-Forwarded-For", []):
        addresses = ",".join(lines).split(",")
    else:
        addresses = [part.get("for", "") for part in request.forwarded]
    for address in map(_without_port, reversed(addresses)):
        try:
            client = str(ipaddress.ip_address(address))
        except ValueError:  # made up, or hidden
            break
        if not _is_trusted(client, proxies):
            break
    return client


def _is_trusted(address: str, proxies: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in proxies)


def _without_port(text: str) -> str:
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _quote(text: str) -> str:
    return '"' + printable_line(text, MAX_CHARS).replace("\\", "\\\\").replace('"', '\\"') + '"'
