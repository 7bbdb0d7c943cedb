"""Python values in a file in memory, on their way to another process of ours: what they are made of, and
their texts beside it.

    pack(value)  -->  text | text | ... | pickle  -->  unpack

`pickle.loads` of texts of fifty megabytes would keep the interpreter's lock for as long as all of them take.
Here each text of some size is made by itself, and while it is other threads have their turns. Whoever
unpacks trusts whoever packed: it is the same code in another process.
"""

import io
import mmap
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox._native import decode_text

APART_CHARS = 1 << 12
"""A text of fewer stays within the pickle."""


@dataclass(frozen=True, slots=True)
class Packed:
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
        if (kind is not str and kind is not bytes) or len(value) < APART_CHARS:
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


def pack(value: Any, known: Mapping[int, str] = {}) -> Packed:
    """The caller closes the file. `known`: what the other side has under a name, by `id`."""
    fd = os.memfd_create("rocstar-parcel", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as texts:
            head = io.BytesIO()
            packer = _Packer(head, texts, known)
            packer.dump(value)
            texts.write(head.getbuffer())
        return Packed(fd, packer.text_bytes, packer.text_bytes + len(head.getbuffer()))
    except BaseException:
        os.close(fd)
        raise


def unpack(parcel: Packed, known: Mapping[str, Any] = {}) -> Any:
    """The value. `known`: what the other side gave only the name of."""
    with (
        mmap.mmap(parcel.fd, parcel.total_bytes, prot=mmap.PROT_READ) as file,
        memoryview(file) as view,
        view[: parcel.text_bytes] as texts,
        view[parcel.text_bytes :] as head,
    ):
        return _Unpacker(io.BytesIO(head), texts, known).load()
