"""The output of a call: streamed text, chunks of files, and the result with its long texts.

OUTPUT, FILE frames --> CallOutput --> on_output
a RESULT's LongTexts --> |  once the result is there
                         +--> ExecResult.files, displays, stdout, stderr, value

Decoding or joining 64 MiB takes 0.1 s, so it runs in a thread, by calls that release the interpreter lock.
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
"""The bytes from which results are assembled in a thread."""


class CallOutput:
    """The output of one call. Invariant: `on_output` receives whole characters, in order.

    has_parts: True if there are chunks or long texts to add to the result. bytes: their size.
    """

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
        """Build the result from a RESULT frame, without its long texts: `add_to` adds them."""
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
        """Return a short text; store a long one and return None."""
        if not isinstance(text, LongText):
            return text
        self._texts[name] = text
        self.bytes += len(text)
        self.has_parts = True
        return None

    async def add_to(self, result: ExecResult) -> ExecResult:
        """Return the result with files, displays and long texts."""
        if self.bytes < JOINED_BYTES:
            return self.merge_into(result) if self.has_parts else result
        return await asyncio.to_thread(self.merge_into, result)

    def merge_into(self, result: ExecResult) -> ExecResult:
        """As `add_to`, blocking."""
        pieces, self._pieces = self._pieces, {}
        texts, self._texts = self._texts, {}
        self.has_parts = False
        read: dict[str, Any] = {name: text.read() for name, text in texts.items()}
        files, displays = {}, []
        for name, chunks in pieces.items():
            if not name.startswith(f"{DISPLAY_FOLDER}/"):
                files[name] = b"".join(chunks)
                continue
            # The first line is the type. Removing it after joining would copy the content while holding the
            # interpreter lock, which `join` releases.
            line, _, first = chunks[0].partition(b"\n")
            if (mime := line.decode("ascii", "replace")) in MIMES:
                displays.append(Display(mime, b"".join([first, *chunks[1:]])))
        return replace(result, files=files, displays=tuple(displays), **read)
