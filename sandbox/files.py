"""Files that a program finds in its directory, and that are taken from it.

    code sent = 0xFF | u32 number of files, its top bit: displays are wanted
                     | (u32 name, u64 content | name, content)... | the program

Checked and packed by the pool, written by the child; the supervisor reads those that the caller asked for
(csrc/sandbox/fetch.h).

No UTF-8 begins with 0xFF, so a program never passes for a pack. The child writes the files as the program's
own user, within the program's own limits, before the program exists: nothing of it shows in a traceback. The
zygote imports this module, so it imports nothing that the zygote would not have.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

MARK = b"\xff"
MAX_FILES = 64
MAX_FILES_BYTES = 64 << 20
"""Bytes of all files of one request together, and of one answer."""

MAX_DISPLAYS = 32
DISPLAY_FOLDER = ".display"
"""As in csrc/sandbox/fetch.h."""

PLACES = {"/mnt/data/": "", "/tmp/": ".tmp/", "/var/tmp/": ".tmp/", "/dev/shm/": ".tmp/"}
"""Folders that a program expects, and where in its directory they are: as in csrc/sandbox/places.h."""

_WANTS_DISPLAYS = 1 << 31

MAX_NAME_BYTES = 200

_PLAIN = (dict, MappingProxyType)


def check(files: Mapping[str, bytes]) -> None:
    """Raises TypeError or ValueError for files that no program can be given."""
    if not files and type(files) in _PLAIN:
        return
    if not isinstance(files, Mapping):
        raise TypeError(f"files is of type {type(files).__name__}; give a dict of names to bytes")
    if len(files) > MAX_FILES:
        raise ValueError(f"files has {len(files)} entries; at most {MAX_FILES} are sent")
    for name, content in files.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise TypeError(
                f"files has {type(name).__name__} to {type(content).__name__}; give a dict of str to bytes"
            )
        if why := fault_of(name):
            raise ValueError(f"files has the name {name[:MAX_NAME_BYTES]!r}: {why}")
    if name := clash(files):
        raise ValueError(f"files has {name!r} both as a file and as a directory")
    total = sum(map(len, files.values()))
    if total > MAX_FILES_BYTES:
        raise ValueError(f"files has {total} bytes; at most {MAX_FILES_BYTES} bytes are sent")


def check_fetch(names: Sequence[str]) -> None:
    """Raises TypeError or ValueError for what no file of a program can be called."""
    if not names:
        return
    if isinstance(names, str) or not isinstance(names, Collection):
        raise TypeError(f"fetch is {names!r}; give a tuple of names")
    if len(names) > MAX_FILES:
        raise ValueError(f"fetch has {len(names)} names; at most {MAX_FILES} are taken")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"fetch has {name!r}; give names as str")
        if why := fault_of(name, fetched=True):
            raise ValueError(f"fetch has the name {name[:MAX_NAME_BYTES]!r}: {why}")


def within(name: str) -> str:
    """The name in the working directory of a file below one of the places; any other name as it is."""
    for place, folder in PLACES.items():
        if name.startswith(place):
            return folder + name.removeprefix(place)
    return name


def fault_of(name: str, *, fetched: bool = False) -> str:
    """Why a name is none of a file of the program's; empty when it is one. fetched: a file under an absolute
    name elsewhere is missing, which is no fault."""
    own = within(name)
    is_path = own and not own.startswith("/") and all(part not in ("", ".", "..") for part in own.split("/"))
    if not is_path and not (fetched and name.startswith("/")):
        return (
            f"give a path below the working directory, or below {', '.join(place[:-1] for place in PLACES)}"
        )
    if not name.isprintable():
        return "give printable characters"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"give at most {MAX_NAME_BYTES} bytes"
    return ""


def clash(files: Mapping[str, bytes]) -> str:
    """A name that is a file and a directory of another one; empty when there is none."""
    own = set(map(within, files))
    return next((name for name in _folders(files) if name in own), "")


def created(files: Mapping[str, bytes]) -> int:
    """How many files and directories writing them creates."""
    return len(files) + len(_folders(files))


def largest(files: Mapping[str, bytes]) -> int:
    return max(map(len, files.values()), default=0)


def _folders(files: Mapping[str, bytes]) -> list[str]:
    parts = (within(name).split("/")[:-1] for name in files)
    return sorted({"/".join(folders[:n]) for folders in parts for n in range(1, len(folders) + 1)})


def pack(files: Mapping[str, bytes], code: bytes, *, displays: bool = False) -> list[bytes]:
    """What is sent in the place of `code`, in pieces: a large content is not copied here."""
    if not files and not displays:
        return [code]
    pieces = [MARK, (len(files) | displays * _WANTS_DISPLAYS).to_bytes(4, "little")]
    for name, content in files.items():
        encoded = within(name).encode()
        pieces += [len(encoded).to_bytes(4, "little"), len(content).to_bytes(8, "little"), encoded, content]
    return [*pieces, code]


def unpack_here(packed: bytes) -> tuple[bytes, bool]:
    """Write the files into the working directory of the child; the program, and whether displays are wanted.
    Raises OSError."""
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
