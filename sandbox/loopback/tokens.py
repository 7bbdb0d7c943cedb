"""Who may call a server, and as whom: a token for each owner, from a file that is read again on SIGHUP.

A server that others can reach needs a token; one on loopback may do without any.
"""

import asyncio
import hmac
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rocstar.sandbox.loopback import bearer_of, is_loopback

MIN_TOKEN_CHARS = 16
MAX_OWNER_CHARS = 64
MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who sends a token. `weight`: its share of what owners have to share, against the others' weights."""

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

    def of_token(self, headers: Mapping[str, str]) -> str | None:
        """The name of the owner whose token a request has; None without a known token. Compare with all
        tokens, each in constant time."""
        sent = bearer_of(headers)
        found = [owner for owner in self.known if hmac.compare_digest(sent, owner.token.encode())]
        return found[0].name if found else None

    def reread(self) -> str:
        """Read the token file again and return one line for the log. A file with an error changes nothing."""
        if self.path is None:
            return "there is no token file to read again"
        try:
            fresh = read_owners(self.path, {})
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
def reread_on_hangup(owners: Owners, note: Callable[[str], None]) -> Iterator[None]:
    """In the block, SIGHUP reads the token file again; SIGUSR1 and SIGUSR2, which programs that rotate logs
    send, do nothing. By default each of them ends the process."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: note(owners.reread()))
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda: None)
    try:
        yield
    finally:
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            loop.remove_signal_handler(number)


def is_word(text: str) -> bool:
    """True for what can name an owner."""
    return 0 < len(text) <= MAX_OWNER_CHARS and text.isascii() and text.isprintable() and " " not in text


def read_owners(path: str | None, environment: MutableMapping[str, str], variable: str = "") -> Owners:
    """Those of a file, or the one of `variable` in the environment, where its token is then deleted: a child
    process must not inherit it. A file holds one token, or lines of NAME TOKEN [WEIGHT]. Raises ValueError
    for a token or a line that is no use, OSError for the file."""
    inherited = environment.pop(variable, None)
    if path is None:
        return Owners(() if inherited is None else (_only(inherited.strip(), variable),))
    # A cluster's secrets are mounted so: no reason not to start.
    if Path(path).is_file() and Path(path).stat().st_mode & 0o044:
        with suppress(OSError):  # as of every line for the operator
            print(f"rocstar: others can read {path}: chmod 600 {path}", file=sys.stderr, flush=True)
    text = Path(path).read_text(encoding="utf-8-sig", errors="replace")  # _check_token reports non-ASCII
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if line]
    if not any(len(words) > 1 for _, words in numbered):
        return Owners((_only(" ".join(words[0] for _, words in numbered), path),), path)
    owners = tuple(_owner(words, f"{path}, line {number},") for number, words in numbered)
    for place, one in enumerate(owners):
        for other in owners[:place]:
            if one.name == other.name or one.token == other.token:
                what = "name" if one.name == other.name else "token"
                raise ValueError(f"{path} gives the {what} of {one.name!r} twice; give each owner its own")
    return Owners(owners, path)


def _only(token: str, where: str) -> Owner:
    _check_token(token, where)
    return Owner(name="", token=token)


def _owner(words: list[str], where: str) -> Owner:
    if not 2 <= len(words) <= 3 or not is_word(words[0]):
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
