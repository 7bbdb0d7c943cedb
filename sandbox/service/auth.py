"""Who may call, and as whom. A service that others can reach needs a token; one on loopback may do without
any."""

import hmac
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox.console import say
from rocstar.sandbox.loopback import bearer_of, foreign, is_loopback
from rocstar.sandbox.service.errors import Refused

TOKEN_VARIABLE = "ROCSTAR_SANDBOX_TOKEN"
MIN_TOKEN_CHARS = 16
RUN_HEADER = "Rocstar-Run"
"""Names the run that a request belongs to, where no token tells whose it is."""


MAX_OWNER_CHARS = 64
MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who sends a token. `weight`: its share of what owners have to share, against the others' weights."""

    name: str
    token: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Owners:
    """All who may call. Without any, everybody may, and a client that names its run is the owner of that."""

    known: tuple[Owner, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.known)

    def weights(self) -> dict[str, int]:
        return {owner.name: owner.weight for owner in self.known}

    def of(self, headers: Mapping[str, str]) -> str | None:
        """The name of a request's owner, "" for nobody in particular; None for one that may not call. Looks
        at all tokens, each in constant time. Raises Refused for a name of a run that is none."""
        if not self.known:
            name = headers.get(RUN_HEADER, "")
            return _run_of(name) if name else ""
        sent = bearer_of(headers)
        found = [owner for owner in self.known if hmac.compare_digest(sent, owner.token.encode())]
        return found[0].name if found else None


def _run_of(name: str) -> str:
    if not _is_word(name):
        message = f"{RUN_HEADER} is {name[:60]!a}; give at most {MAX_OWNER_CHARS} printable ASCII letters"
        raise Refused(message, field=RUN_HEADER)
    return name


def _is_word(text: str) -> bool:
    return 0 < len(text) <= MAX_OWNER_CHARS and text.isascii() and text.isprintable() and " " not in text


def read_owners(path: str | None, environment: MutableMapping[str, str]) -> Owners:
    """Those of a file, or the one of the environment, where its token is then deleted: a child process must
    not inherit it. A file holds one token, or lines of NAME TOKEN [WEIGHT]. Raises ValueError for a token or
    a line that is no use, OSError for the file."""
    inherited = environment.pop(TOKEN_VARIABLE, None)
    if path is None:
        return Owners(() if inherited is None else (_only(inherited.strip(), TOKEN_VARIABLE),))
    # A cluster's secrets are mounted so: no reason not to start.
    if Path(path).is_file() and Path(path).stat().st_mode & 0o044:
        say(f"others can read {path}: chmod 600 {path}")
    text = Path(path).read_text(encoding="utf-8-sig", errors="replace")  # a token that is no ASCII is told
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if line]
    if not any(len(words) > 1 for _, words in numbered):
        return Owners((_only(" ".join(words[0] for _, words in numbered), path),))
    owners = tuple(_owner(words, f"{path}, line {number},") for number, words in numbered)
    for place, one in enumerate(owners):
        for other in owners[:place]:
            if one.name == other.name or one.token == other.token:
                what = "name" if one.name == other.name else "token"
                raise ValueError(f"{path} gives the {what} of {one.name!r} twice; give each owner its own")
    return Owners(owners)


def _only(token: str, where: str) -> Owner:
    _check_token(token, where)
    return Owner(name="", token=token)


def _owner(words: list[str], where: str) -> Owner:
    if not 2 <= len(words) <= 3 or not _is_word(words[0]):
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


def require_token_unless_loopback(host: str, owners: Owners) -> None:
    """Raises ValueError for a bind that others could reach and nothing protects."""
    if not owners and not is_loopback(host):
        raise ValueError(
            f"--host {host} can be reached from other machines, so a token is needed: give --token-file FILE "
            f"or set {TOKEN_VARIABLE}, or bind to 127.0.0.1"
        )


def refuse_web_pages(headers: Mapping[str, str], host: str) -> None:
    """For a service without tokens. Raises Refused for what `foreign` says something of."""
    if (found := foreign(headers, host)) is not None:
        raise Refused(found.why, field=found.header, status=403, kind="forbidden")
