"""What comes of a call: output as it is written, pieces of files, and its result with texts however long.

OUTPUT, FILE frames --> CallOutput --> on_output
a RESULT's LongTexts --> |  once the result is there
                         +--> ExecResult.files, displays, stdout, stderr, value

To make a text of 64 MiB, or to put so much together, takes a tenth of a second: that is done in a thread, by
calls that let go of the interpreter's lock.
"""

import asyncio
import codecs
from dataclasses import replace
from typing import Any

from rocstar.sandbox._native import LongText
from rocstar.sandbox.files import DISPLAY_FOLDER
from rocstar.sandbox.pool.wire import STATUSES
from rocstar.sandbox.types import MIMES, Display, ExecResult, OnOutput

JOINED_BYTES = 1 << 20
"""More is put together beside the loop."""


class CallOutput:
    """Of one call. Invariant: `on_output` is told whole characters, in their order. `some`: whether there is
    something to be added. `bytes`: of the pieces and the long texts."""

    __slots__ = ("_decoders", "_on_output", "_pieces", "_texts", "bytes", "has_parts")

    def __init__(self, on_output: OnOutput | None = None) -> None:
        self._on_output = on_output
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._pieces: dict[str, list[bytes]] = {}
        self._texts: dict[str, LongText] = {}
        self.bytes = 0
        self.has_parts = False

    def add_text(self, stream: str, data: bytes) -> None:
        if self._on_output is None:
            return
        if (decoder := self._decoders.get(stream)) is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        if text := decoder.decode(data):
            self._on_output(stream, text)

    def add_chunk(self, name: str, data: bytes) -> None:
        self._pieces.setdefault(name, []).append(data)
        self.bytes += len(data)
        self.has_parts = True

    def build_result(self, frame: tuple[Any, ...], isolation: str, tier: str) -> ExecResult:
        """What a RESULT says. Long texts are left out until `add_to`."""
        stdout, stderr, value = frame[5], frame[6], frame[9]
        if LongText in (type(stdout), type(stderr), type(value)):
            stdout = self._put_aside("stdout", stdout) or ""
            stderr = self._put_aside("stderr", stderr) or ""
            value = self._put_aside("value", value)
        return ExecResult(
            status=STATUSES[frame[2]],
            exit_code=frame[3],
            signal=frame[4],
            stdout=stdout,
            stderr=stderr,
            stdout_truncated=frame[7],
            stderr_truncated=frame[8],
            value=value,
            wall_s=frame[10],
            cpu_s=frame[11],
            peak_memory_bytes=frame[12],
            isolation=isolation,
            tier=tier,
        )

    def _put_aside(self, name: str, text: str | LongText | None) -> str | None:
        """A text as it is, and None in the place of a long one."""
        if not isinstance(text, LongText):
            return text
        self._texts[name] = text
        self.bytes += len(text)
        self.has_parts = True
        return None

    async def add_to(self, result: ExecResult) -> ExecResult:
        """The result with what was taken."""
        if self.bytes < JOINED_BYTES:
            return self.merge_into(result) if self.has_parts else result
        return await asyncio.to_thread(self.merge_into, result)

    def merge_into(self, result: ExecResult) -> ExecResult:
        """The same, here: blocks for as long as what was taken is long."""
        pieces, self._pieces = self._pieces, {}
        texts, self._texts = self._texts, {}
        self.has_parts = False
        read: dict[str, Any] = {name: text.read() for name, text in texts.items()}
        shown = [_display(many) for name, many in pieces.items() if _is_display(name)]
        files = {name: b"".join(many) for name, many in pieces.items() if not _is_display(name)}
        displays = tuple(one for one in shown if one.mime in MIMES)
        return replace(result, files=files, displays=displays, **read)


def _is_display(name: str) -> bool:
    return name.startswith(f"{DISPLAY_FOLDER}/")


def _display(pieces: list[bytes]) -> Display:
    """Its first line is its type. Cut off before the rest is put together: a copy of all of it would keep the
    interpreter's lock, and `join` lets go of it."""
    mime, _, first = pieces[0].partition(b"\n")
    return Display(mime.decode("ascii", "replace"), b"".join([first, *pieces[1:]]))
