"""The whole of outputs that are too long for an answer, for clients that read resources.

answer: head, tail and a link ──> resources/read URI ──> the whole, while it is kept
"""

import secrets
from collections import OrderedDict

SCHEME = "rocstar-output"
MAX_KEPT_CHARS = 64 << 20
MAX_KEPT_PER_OWNER = 16


class KeptOutputs:
    """Invariant: at most `MAX_KEPT_CHARS` of all owners, and the latest `MAX_KEPT_PER_OWNER` of each; an
    output is its owner's alone."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._chars = 0

    def keep(self, owner: str, text: str) -> str:
        """The URI under which the text can be read for a while."""
        name = secrets.token_hex(8)
        self._kept[owner, name] = text
        self._chars += len(text)
        mine = [key for key in self._kept if key[0] == owner]
        if len(mine) > MAX_KEPT_PER_OWNER:
            self._drop(mine[0])
        while self._chars > MAX_KEPT_CHARS:
            self._drop(next(iter(self._kept)))
        return f"{SCHEME}://{name}"

    def read(self, owner: str, name: str) -> str | None:
        """The text; None if it is not kept, or another's."""
        return self._kept.get((owner, name))

    def _drop(self, key: tuple[str, str]) -> None:
        self._chars -= len(self._kept.pop(key))
