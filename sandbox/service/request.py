"""A request, as the guard hands it to a handler."""

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

NO_NAMES: Mapping[str, str] = MappingProxyType({})


class HttpRequest(web.Request):
    """Of aiohttp, with what this service knows of it beside.

    Attributes:
        owner: Whose it is; "" for nobody in particular.
        names: What stands in its path at the places that have names.
        held_bytes: What counts as held of its body (see `Incoming`).
    """

    ATTRS = web.Request.ATTRS | frozenset(("owner", "names", "held_bytes"))

    owner: str = ""
    names: Mapping[str, str] = NO_NAMES
    held_bytes: int = 0
