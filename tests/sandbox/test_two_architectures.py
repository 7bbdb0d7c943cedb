"""The system calls that csrc/ names are there on x86-64 and arm64: by the kernel's own headers, on either."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .. import needs

CSRC = Path(__file__).parents[2] / "csrc" / "sandbox"
FILES = ("syscall_policy.cpp", "seccomp_notify.cpp")
GENERIC = Path("/usr/include/asm-generic/unistd.h")
ARM64 = ("RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET")
"""What arm64's <asm/unistd.h> asks of the list that it shares with other machines."""
NAME = re.compile(r"\b__NR_\w+")


def headers_names() -> set[str]:
    if shutil.which("g++") is None or not GENERIC.exists():
        needs.COMPILER.skip()
    words = [f"-D__ARCH_WANT_{word}" for word in ARM64]
    done = subprocess.run(
        ["g++", "-E", "-dM", *words, "-include", GENERIC, "-x", "c++", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"^#define (__NR_\w+)", done.stdout, re.MULTILINE))


def names_of(text: str) -> tuple[set[str], set[str]]:
    """(on both, on x86-64 alone), of a source; those that it gives a number itself are on both."""
    parts = re.split(r"^#if defined\(__x86_64__\)$(.*?)^#endif$", text, flags=re.MULTILINE | re.DOTALL)
    own = set(re.findall(r"^#define (__NR_\w+)", text, re.MULTILINE))
    both, alone = (set(NAME.findall("".join(some))) for some in (parts[::2], parts[1::2]))
    return both - own, alone


@pytest.mark.parametrize("file", FILES)
def test_each_call_is_named_where_it_is(file: str) -> None:
    """One that arm64 has, too, and that is named for x86-64 alone, is refused there: renameat was."""
    arm64 = headers_names()
    both, alone = names_of((CSRC / file).read_text())
    assert "__NR_openat" in both and "__NR_open" in alone
    assert both - arm64 == set() and alone & arm64 == set()
