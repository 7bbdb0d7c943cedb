"""Who may call. A service that others can reach needs a token; one on loopback may go without."""

import hmac
import ipaddress
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

TOKEN_VARIABLE = "ROCSTAR_SANDBOX_TOKEN"
MIN_TOKEN_CHARS = 16


def read_token(path: str | None, environment: MutableMapping[str, str]) -> str | None:
    """The token from a file or else from the environment, where it is then deleted: a child process must not
    inherit it. None when neither is given. Raises ValueError for one that is no use, OSError for the file."""
    inherited = environment.pop(TOKEN_VARIABLE, None)
    if path is not None:
        token, where = Path(path).read_text(encoding="utf-8").strip(), path
    elif inherited is not None:
        token, where = inherited.strip(), TOKEN_VARIABLE
    else:
        return None
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"the token in {where} has {len(token)} characters; give at least {MIN_TOKEN_CHARS} printable "
            "ASCII ones without blanks, for example from `openssl rand -hex 32`"
        )
    return token


def require_token_unless_loopback(host: str, token: str | None) -> None:
    """Raises ValueError for a bind that others could reach and nothing protects."""
    if token is None and not is_loopback(host):
        raise ValueError(
            f"--host {host} can be reached from other machines, so a token is needed: give --token-file FILE "
            f"or set {TOKEN_VARIABLE}, or bind to 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """True if every address `host` stands for is this machine's own. Raises OSError for an unknown name."""
    if not host:  # every address
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def is_own_page(origin: str, host: str) -> bool:
    """True for this service's own page, opened under a name of this machine alone. Somebody else's name may
    be made to stand for loopback, so that it being the same twice says nothing."""
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
        return origin == f"http://{host}" and (name == "localhost" or ipaddress.ip_address(name).is_loopback)
    return False


def is_authorized(header: str | None, token: str | None) -> bool:
    """`header` is that of Authorization. Compares in constant time."""
    if token is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return same and scheme.lower() == "bearer"
