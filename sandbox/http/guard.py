"""Authentication of requests: bearer tokens of owners, loopback names, and web pages.

    a server with tokens      a request needs the token of an owner
    a server without tokens   it listens on loopback, and refuses web pages and foreign names

A page in a browser on this machine can send requests to loopback, also under a DNS name that its author
points at loopback (DNS rebinding). Such a page has the same origin as the server, so the Host header is
checked.
"""

import asyncio
import hmac
import ipaddress
import re
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.owner_budget import OwnerBudget

UNAUTHORIZED = "unauthorized"
"""The kind of an error with status 401."""
TOKEN_VARIABLE = "ROCSTAR_SANDBOX_TOKEN"
RUN_HEADER = "Rocstar-Run"
"""The header that names the run of a request, on a server without tokens."""

_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]*)?")
"""A Host header. Text after an address would make it part of another name, so it is not allowed."""


@lru_cache(maxsize=64)
def is_local_name(host: str) -> bool:
    """Return True for a name that no other party can point at this machine: an address, or localhost. Cached,
    as every request calls it."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found["v6"] is not None:
        return _is_address(found["v6"])
    name = found["name"].lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost") or _is_address(name)


def is_loopback(host: str) -> bool:
    """Return True if every address of `host` is a loopback address. Raises OSError for an unknown name."""
    if not host:  # every address
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def find_peer_user(transport: asyncio.BaseTransport) -> int | None:
    """The user who owns the other end of a connection of loopback; None where that cannot be known (IPv6, no
    /proc)."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if peer is None or own is None or len(peer) != 2:
        return None
    texts = []  # as in /proc/net/tcp, where an address is a number of this machine's byte order
    for host, port in (peer, own):
        (number,) = struct.unpack("=I", socket.inet_aton(host))
        texts.append(f"{number:08X}:{port:04X}")
    for table, mapped in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        ends = [mapped + text for text in texts]
        with suppress(OSError, ValueError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if words[1:3] == ends:
                    return int(words[7])
    return None


def parse_bearer_token(headers: Mapping[str, str]) -> bytes:
    """The token of `Authorization: Bearer TOKEN`, or of the headers in which clients of Anthropic and Google send
    it; empty without one. Any bytes of a client become some text: compare it by `hmac.compare_digest`."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key") or headers.get("x-goog-api-key") or ""
    return given.strip().encode("utf-8", "replace")


MIN_TOKEN_CHARS = 16
MAX_OWNER_CHARS = 64
MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a token. `weight`: its share of the budgets, relative to the other owners' weights."""

    name: str
    token: str
    weight: int = 1


@dataclass(slots=True)
class Owners:
    """The owners of tokens. If empty, no token is needed. `path`: the token file that `reread` reads, or
    None."""

    known: tuple[Owner, ...] = ()
    path: str | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return bool(self.known)

    def weights(self) -> dict[str, int]:
        return {owner.name: owner.weight for owner in self.known}

    def budget(self, total: int) -> OwnerBudget:
        """Return a budget that the owners share by weight."""
        return OwnerBudget(total, self.weights())

    def find_owner(self, headers: Mapping[str, str]) -> str | None:
        """The name of the owner whose token a request has; None without a known token. Compare with all
        tokens, each in constant time."""
        sent = parse_bearer_token(headers)
        found = [owner for owner in self.known if hmac.compare_digest(sent, owner.token.encode())]
        return found[0].name if found else None

    def reload(self) -> str:
        """Read the token file again and return one line for the log. A file with an error changes nothing."""
        if self.path is None:
            return "there is no token file to read again"
        try:
            fresh = load_owners(self.path, {})
        except OSError as error:
            return f"the tokens stay as they were: {self.path}: {error.strerror}"
        except ValueError as error:
            return f"the tokens stay as they were: {error}"
        before, self.known = self.known, fresh.known
        new = sorted(set(fresh.weights()) - {owner.name for owner in before})
        gone = sorted({owner.name for owner in before} - set(fresh.weights()))
        changes = [f"{what} {', '.join(names)}" for what, names in (("new", new), ("gone", gone)) if names]
        return f"read {self.path} again, owners: {len(self.known)}" + "".join(f"; {one}" for one in changes)


@contextmanager
def reload_on_sighup(owners: Owners, note: Callable[[str], None]) -> Iterator[None]:
    """Reload the token file on SIGHUP in the block, and ignore SIGUSR1 and SIGUSR2, which log rotation sends.
    By default each of these signals ends the process."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: note(owners.reload()))
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda: None)
    try:
        yield
    finally:
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            loop.remove_signal_handler(number)


def is_owner_name(text: str) -> bool:
    """True for what can name an owner."""
    return 0 < len(text) <= MAX_OWNER_CHARS and text.isascii() and text.isprintable() and " " not in text


def load_owners(path: str | None, environment: MutableMapping[str, str], variable: str = "") -> Owners:
    """Load the owners from a file, or from the variable `variable` of the environment, which is then deleted
    so that no child process inherits the token. A file holds one token, or lines of NAME TOKEN [WEIGHT].
    Raises ValueError for an invalid token or line, OSError for the file."""
    inherited = environment.pop(variable, None)
    if path is None:
        return Owners(() if inherited is None else (_single_owner(inherited.strip(), variable),))
    # A cluster's secrets are mounted so: no reason not to start.
    if Path(path).is_file() and Path(path).stat().st_mode & 0o044:
        with suppress(OSError):  # as of every line for the operator
            print(f"rocstar: others can read {path}: chmod 600 {path}", file=sys.stderr, flush=True)
    text = Path(path).read_text(encoding="utf-8-sig", errors="replace")  # _check_token reports non-ASCII
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if line]
    if not any(len(words) > 1 for _, words in numbered):
        return Owners((_single_owner(" ".join(words[0] for _, words in numbered), path),), path)
    owners = tuple(_parse_owner(words, f"{path}, line {number},") for number, words in numbered)
    for place, one in enumerate(owners):
        for other in owners[:place]:
            if one.name == other.name or one.token == other.token:
                what = "name" if one.name == other.name else "token"
                raise ValueError(f"{path} gives the {what} of {one.name!r} twice; give each owner its own")
    return Owners(owners, path)


def _single_owner(token: str, where: str) -> Owner:
    _check_token(token, where)
    return Owner(name="", token=token)


def _parse_owner(words: list[str], where: str) -> Owner:
    if not 2 <= len(words) <= 3 or not is_owner_name(words[0]):
        raise ValueError(f"{where} has {len(words)} words; give NAME TOKEN or NAME TOKEN WEIGHT")
    weight = words[2] if len(words) == 3 else "1"
    if not weight.isdecimal() or not 1 <= int(weight) <= MAX_WEIGHT:
        raise ValueError(f"{where} has the weight {weight[:20]!r}; give a whole number of 1 to {MAX_WEIGHT}")
    _check_token(words[1], where.rstrip(","))
    return Owner(name=words[0], token=words[1], weight=int(weight))


def _check_token(token: str, where: str) -> None:
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"the token in {where} has {len(token)} characters; give at least {MIN_TOKEN_CHARS} printable "
            "ASCII ones without blanks, for example from `openssl rand -hex 32`"
        )


def require_token_unless_loopback(hosts: Sequence[str], owners: Owners, variable: str = "") -> None:
    """Raises ValueError for a bind that others could reach and nothing protects, and for an unknown name."""
    for host in () if owners else hosts:
        try:
            reaches_others = not is_loopback(host)
        except OSError as error:
            raise ValueError(f"--host {host}: {error.strerror}; give an address of this machine") from None
        if reaches_others:
            otherwise = f" or set {variable}" if variable else ""
            raise ValueError(
                f"--host {host} can be reached from other machines, so a token is needed: give --token-file "
                f"FILE{otherwise}, or bind to 127.0.0.1"
            )


def run_name(headers: Mapping[str, str]) -> str:
    """Return the run that a request without a token names as its owner, or "". Raises RequestError."""
    name = headers.get(RUN_HEADER, "")
    if name and not is_owner_name(name):
        message = f"{RUN_HEADER} is {name[:60]!a}; give at most {MAX_OWNER_CHARS} printable ASCII letters"
        raise RequestError(message, field=RUN_HEADER)
    return name


def authenticate(owners: Owners, headers: Mapping[str, str], host: str) -> str:
    """Return the owner of a request, or "" if the server has no tokens.

    Raises RequestError: 401 without the token of an owner; 403 for a web page or a foreign host name, on a
    server without tokens.
    """
    if owners:
        if (owner := owners.find_owner(headers)) is None:
            message = "the request has no valid token; send it as `Authorization: Bearer TOKEN`"
            raise RequestError(message, status=401, kind=UNAUTHORIZED)
        return owner
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
    if (origin is not None and origin != f"http://{host}") or site not in ("none", "same-origin"):
        raise RequestError("requests from web pages need a token", status=403, kind="forbidden")
    if not is_local_name(host):
        why = f"Host is {host[:60]!a}; use an address of this machine, or localhost, or set a token"
        raise RequestError(why, field="Host", status=403, kind="forbidden")
    return ""
