"""The files of a program: written into its directory before it starts, and fetched after it ended.

    code sent = 0xFF | u32 number of files, its top bit: displays are requested
                     | (u32 name, u64 content | name, content)... | the program

The pool checks and packs the files, the child writes them, and the supervisor reads those that the caller
fetches (csrc/sandbox/fetch.h).

UTF-8 never begins with 0xFF, so a program cannot be confused with a pack. The child writes the files as the
program's user and within the program's limits, before the program starts, so that tracebacks do not show it.
The zygote imports this module, so it has no further imports.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

MARK = b"\xff"
MAX_FILES = 64
MAX_FILES_BYTES = 64 << 20
"""The maximum bytes of all files of one request, and of one result."""

MAX_DISPLAYS = 32
DISPLAY_FOLDER = ".display"
"""As in csrc/sandbox/fetch.h."""

PLACES = {"/mnt/data/": "", "/tmp/": ".tmp/", "/var/tmp/": ".tmp/", "/dev/shm/": ".tmp/"}
"""Absolute folders that programs expect, and their folders in the program's directory: as in
csrc/sandbox/places.h."""

_WANTS_DISPLAYS = 1 << 31

MAX_NAME_BYTES = 200

_PLAIN = (dict, MappingProxyType)


def check(files: Mapping[str, bytes]) -> None:
    """Raise TypeError or ValueError for invalid files."""
    if not files and type(files) in _PLAIN:
        return
    if not isinstance(files, Mapping):
        raise TypeError(f"files is of type {type(files).__name__}. Pass a dict of names to bytes.")
    if len(files) > MAX_FILES:
        raise ValueError(f"files has {len(files)} entries, more than {MAX_FILES}")
    for name, content in files.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise TypeError(
                f"files has {type(name).__name__} to {type(content).__name__}. Pass a dict of str to bytes."
            )
        if why := fault_of(name):
            raise ValueError(f"files has the name {name[:MAX_NAME_BYTES]!r}: {why}")
    if name := clash(files):
        raise ValueError(f"files has {name!r} both as a file and as a directory")
    total = sum(map(len, files.values()))
    if total > MAX_FILES_BYTES:
        raise ValueError(f"files has {total} bytes, more than {MAX_FILES_BYTES}")


def check_fetch(names: Sequence[str]) -> None:
    """Raise TypeError or ValueError for invalid file names."""
    if not names:
        return
    if isinstance(names, str) or not isinstance(names, Collection):
        raise TypeError(f"fetch is {names!r}. Pass a tuple of names.")
    if len(names) > MAX_FILES:
        raise ValueError(f"fetch has {len(names)} names, more than {MAX_FILES}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"fetch has {name!r}. Pass names as str.")
        if why := fault_of(name, fetched=True):
            raise ValueError(f"fetch has the name {name[:MAX_NAME_BYTES]!r}: {why}")


def within(name: str) -> str:
    """Return the name in the working directory of a file below one of PLACES, and any other name
    unchanged."""
    for place, folder in PLACES.items():
        if name.startswith(place):
            return folder + name.removeprefix(place)
    return name


def fault_of(name: str, *, fetched: bool = False) -> str:
    """Return the reason for which a name is invalid, or "". fetched: other absolute names are valid, and
    their files count as missing."""
    own = within(name)
    is_path = own and not own.startswith("/") and all(part not in ("", ".", "..") for part in own.split("/"))
    if not is_path and not (fetched and name.startswith("/")):
        return f"use a path below the working directory, or below {', '.join(place[:-1] for place in PLACES)}"
    if not name.isprintable():
        return "use printable characters"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"use at most {MAX_NAME_BYTES} bytes"
    return ""


def clash(files: Mapping[str, bytes]) -> str:
    """Return a name that is both a file and a directory of another file, or ""."""
    own = set(map(within, files))
    return next((name for name in _folders(files) if name in own), "")


def created(files: Mapping[str, bytes]) -> int:
    """Return the number of files and directories that writing the files creates."""
    return len(files) + len(_folders(files))


def _folders(files: Mapping[str, bytes]) -> list[str]:
    parts = (within(name).split("/")[:-1] for name in files)
    return sorted({"/".join(folders[:n]) for folders in parts for n in range(1, len(folders) + 1)})


def pack(files: Mapping[str, bytes], code: bytes, *, displays: bool = False) -> list[bytes]:
    """Return the pieces that are sent instead of `code`, without copying contents."""
    if not files and not displays:
        return [code]
    pieces = [MARK, (len(files) | displays * _WANTS_DISPLAYS).to_bytes(4, "little")]
    for name, content in files.items():
        encoded = within(name).encode()
        pieces += [len(encoded).to_bytes(4, "little"), len(content).to_bytes(8, "little"), encoded, content]
    return [*pieces, code]


def unpack_here(packed: bytes) -> tuple[bytes, bool]:
    """Write the files into the child's working directory. Return (program, True if displays are requested).
    Raise OSError."""
    view, at = memoryview(packed), 5
    number = int.from_bytes(view[1:at], "little")
    for _ in range(number & ~_WANTS_DISPLAYS):
        end = at + 12 + int.from_bytes(view[at : at + 4], "little")
        name = str(view[at + 12 : end], "utf-8")
        size, at = int.from_bytes(view[at + 4 : at + 12], "little"), end
        if folder := os.path.dirname(name):
            os.makedirs(folder, exist_ok=True)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        while at < end + size:
            at += os.write(fd, view[at : end + size])
        os.close(fd)
    return packed[at:], number >= _WANTS_DISPLAYS
