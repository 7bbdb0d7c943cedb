"""What comes of a call before its result: output as it is written, and pieces of files.

OUTPUT, FILE frames --> Taken --> on_output
                          |  once the result is there
                          +--> ExecResult.files, ExecResult.displays
"""

import asyncio
import codecs
from dataclasses import replace

from rocstar.sandbox.files import DISPLAY_FOLDER
from rocstar.sandbox.types import MIMES, Display, ExecResult, OnOutput

JOINED_BYTES = 1 << 20
"""More is put together beside the loop."""


class Taken:
    """Of one call. Invariant: `on_output` is told whole characters, in their order."""

    def __init__(self, on_output: OnOutput | None = None) -> None:
        self._on_output = on_output
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self.pieces: dict[str, list[bytes]] = {}
        """Of files and displays, to be added to the result."""
        self.bytes = 0
        """Of the pieces."""

    def output(self, stream: str, data: bytes) -> None:
        if self._on_output is None:
            return
        if (decoder := self._decoders.get(stream)) is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        if text := decoder.decode(data):
            self._on_output(stream, text)

    def piece(self, name: str, data: bytes) -> None:
        self.pieces.setdefault(name, []).append(data)
        self.bytes += len(data)

    async def added_to(self, result: ExecResult) -> ExecResult:
        """The result with what was taken."""
        if not self.pieces:
            return result
        pieces, self.pieces = self.pieces, {}
        if self.bytes < JOINED_BYTES:
            return _added(result, pieces)
        return await asyncio.to_thread(_added, result, pieces)


def _added(result: ExecResult, pieces: dict[str, list[bytes]]) -> ExecResult:
    files = {name: b"".join(many) for name, many in pieces.items()}
    shown = {name: files.pop(name) for name in pieces if name.startswith(f"{DISPLAY_FOLDER}/")}
    displays = [
        Display(mime.decode("ascii", "replace"), data) for mime, _, data in map(_parted, shown.values())
    ]
    return replace(result, files=files, displays=tuple(one for one in displays if one.mime in MIMES))


def _parted(content: bytes) -> tuple[bytes, bytes, bytes]:
    return content.partition(b"\n")
