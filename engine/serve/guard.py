"""Who may ask: whoever has the token; without one, programs of this machine and no web page.

The rules for web pages, and for names that stand for this machine, are in `rocstar.sandbox.loopback`.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.sandbox.loopback import foreign
from rocstar.sandbox.loopback.tokens import Owners

OPEN_PATHS = frozenset(("/health", "/healthz", "/readyz", "/", "/docs", "/openapi.json"))
"""Paths that tell nothing of any conversation."""


class ServeGuard:
    """Invariant: with tokens nothing but `OPEN_PATHS` is answered without one; without any, nothing under a
    name that somebody else may have made to stand for this machine, nor for a web page."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def check(self, path: str, headers: Mapping[str, str], host: str) -> str | None:
        """The name of the owner of a request that needs permission and has it; None for a path that anybody
        may ask for. ServeRefusal for a request that may not be answered."""
        if path in OPEN_PATHS:
            return None
        if self._owners:
            if (owner := self._owners.of_token(headers)) is None:
                raise ServeRefusal(
                    "give the server's token as `Authorization: Bearer TOKEN`",
                    status=401,
                    code="invalid_api_key",
                )
            return owner
        if (found := foreign(headers, host)) is not None:
            raise ServeRefusal(found.why, status=403, param=found.header or None, code="forbidden")
        return ""
