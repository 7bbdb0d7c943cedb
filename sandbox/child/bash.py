"""The bash flavour: which tools its programs may start, and what they may read.

A program runs as `bash -c PROGRAM` in a confined child, and so does everything that it starts: the system
call filter, Landlock, the limits and the process group outlive exec (csrc/sandbox/shell_child.h).

The list of tools keeps programs of different machines alike. It is not what holds a hostile one: who can
write a file can have bash load it as a library, so native code is taken for granted, as in all flavours.
"""

import os
import shutil
from collections.abc import Iterator
from typing import Final

from rocstar.sandbox.child import cpp

BASH: Final = "bash"
"""The flavour's name."""

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""As programs see it."""

_COREUTILS = (
    *("arch", "b2sum", "base32", "base64", "basename", "basenc", "cat", "chgrp", "chmod", "chown", "cksum"),
    *("comm", "cp", "csplit", "cut", "date", "dd", "df", "dir", "dircolors", "dirname", "du", "echo", "env"),
    *(
        "expand",
        "expr",
        "factor",
        "false",
        "fmt",
        "fold",
        "groups",
        "head",
        "hostid",
        "id",
        "install",
        "join",
    ),
    *("link", "ln", "logname", "ls", "md5sum", "mkdir", "mkfifo", "mknod", "mktemp", "mv", "nice", "nl"),
    *("nohup", "nproc", "numfmt", "od", "paste", "pathchk", "pr", "printenv", "printf", "ptx", "pwd"),
    *("readlink", "realpath", "rm", "rmdir", "runcon", "seq", "sha1sum", "sha224sum", "sha256sum"),
    *("sha384sum", "sha512sum", "shred", "shuf", "sleep", "sort", "split", "stat", "stdbuf", "stty", "sum"),
    *("sync", "tac", "tail", "tee", "test", "timeout", "touch", "tr", "true", "truncate", "tsort", "tty"),
    *("uname", "unexpand", "uniq", "unlink", "users", "vdir", "wc", "who", "whoami", "yes", "["),
)
TOOLS: Final = (
    *("bash", "sh", "dash", *_COREUTILS, "find", "xargs", "grep", "egrep", "fgrep", "sed", "awk", "mawk"),
    *("gawk", "diff", "diff3", "cmp", "sdiff", "patch", "bc", "dc", "jq", "tar", "gzip", "gunzip", "zcat"),
    *("bzip2", "bunzip2", "bzcat", "xz", "unxz", "xzcat", "zstd", "xxd", "hexdump", "column", "rev", "file"),
    *("iconv", "getopt", "tput", "which"),
)
"""What may be started, where the machine has it. None of them interprets another general language but awk."""


def executable() -> str | None:
    """The path of bash; None when there is none."""
    return shutil.which("bash", path=PATH)


def tools() -> list[str]:
    """The paths of bash and its tools, by the files that they are in the end."""
    found = (shutil.which(name, path=PATH) for name in TOOLS)
    return sorted({os.path.realpath(path) for path in found if path is not None})


def supervisor_words() -> Iterator[str]:
    yield from (f"--shell-tool={path}" for path in tools())
    yield from (f"--library={path}" for path in cpp.LIBRARIES)
    yield from (f"--loader={path}" for path in cpp.loaders())


def lacks(layers: list[str]) -> tuple[str, str] | None:
    """Why a zygote cannot offer the flavour, as SandboxError's kind and message; None when it can."""
    if missing := cpp.lacks_layers(BASH, layers):
        return missing
    if not os.path.exists("/proc/thread-self/children"):
        message = "flavour 'bash' needs a kernel with CONFIG_PROC_CHILDREN, to see what a program has started"
        return "no_isolation", message
    if executable() is None:
        return "missing_import", f"flavour 'bash' needs bash in {PATH}: apt-get install bash"
    return None


def offered() -> bool:
    """Whether this machine can have the flavour, as far as can be told without trying."""
    return cpp.can_confine() and lacks(["seccomp", "notify", "scratch"]) is None
