"""Pickles in shared memory, for another process of the same server.

    dump(value)  -->  text | text | ... | pickle  -->  load_pickle

`pickle.loads` of 50 MB of text would hold the interpreter's lock for its whole duration. Here each long text
is created by itself, so other threads run in between. The reader trusts the writer, which runs the same code.
"""

import io
import mmap
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox._native import decode_text

LONG_TEXT_CHARS = 1 << 12
"""A text of fewer stays within the pickle."""


@dataclass(frozen=True, slots=True)
class MemfdPickle:
    """A value in the file `fd`: texts in its first `text_bytes`, the pickle in the rest of `total_bytes`."""

    fd: int
    text_bytes: int
    total_bytes: int


class _Packer(pickle.Pickler):
    def __init__(self, head: io.BytesIO, texts: io.BufferedWriter, known: Mapping[int, str]) -> None:
        super().__init__(head, pickle.HIGHEST_PROTOCOL)
        self._texts = texts
        self._known = known
        self.text_bytes = 0

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if (kind is not str and kind is not bytes) or len(value) < LONG_TEXT_CHARS:
            return self._known.get(id(value))
        begin = self.text_bytes
        self.text_bytes += self._texts.write(value.encode("utf-8", "surrogatepass") if kind is str else value)
        return kind is str, begin, self.text_bytes


class _Unpacker(pickle.Unpickler):
    def __init__(self, head: io.BytesIO, texts: memoryview, known: Mapping[str, Any]) -> None:
        super().__init__(head)
        self._texts = texts
        self._known = known

    def persistent_load(self, name: Any) -> Any:
        if isinstance(name, str):
            return self._known[name]
        is_text, begin, end = name
        piece = self._texts[begin:end]
        return decode_text(piece) if is_text else bytes(piece)


def dump(value: Any, known: Mapping[int, str] = {}) -> MemfdPickle:
    """Pickle the value into a memory file, which the caller closes. `known`: names of objects that the reader
    has, by `id`."""
    fd = os.memfd_create("rocstar-parcel", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as texts:
            head = io.BytesIO()
            packer = _Packer(head, texts, known)
            packer.dump(value)
            texts.write(head.getbuffer())
        return MemfdPickle(fd, packer.text_bytes, packer.text_bytes + len(head.getbuffer()))
    except BaseException:
        os.close(fd)
        raise


def load_pickle(parcel: MemfdPickle, known: Mapping[str, Any] = {}) -> Any:
    """Return the value. `known`: the objects that the writer only named."""
    with (
        mmap.mmap(parcel.fd, parcel.total_bytes, prot=mmap.PROT_READ) as file,
        memoryview(file) as view,
        view[: parcel.text_bytes] as texts,
        view[parcel.text_bytes :] as head,
    ):
        return _Unpacker(io.BytesIO(head), texts, known).load()
