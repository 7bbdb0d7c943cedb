"""The bash flavour: the tools that its programs may start and the files that they may read.

A program runs as `bash -c PROGRAM` in a confined child. Its processes are confined as well: the system call
filter, Landlock, the limits and the process group persist across exec (csrc/sandbox/shell_child.h).

The list of tools makes programs portable between machines; it is not a security boundary. A program that can
write a file can make bash load it as a library, so all flavours assume that programs run native code.
"""

import os
import shutil
from collections.abc import Iterator
from typing import Final

from rocstar.sandbox.child import cpp

BASH: Final = "bash"
"""The flavour's name."""

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""PATH in programs."""

_COREUTILS = (
    *("arch", "b2sum", "base32", "base64", "basename", "basenc", "cat", "chgrp", "chmod", "chown", "cksum"),
    *("comm", "cp", "csplit", "cut", "date", "dd", "df", "dir", "dircolors", "dirname", "du", "echo", "env"),
    *("expand", "expr", "factor", "false", "fmt", "fold", "groups", "head", "hostid", "id", "install"),
    *("join", "link", "ln", "logname", "ls", "md5sum", "mkdir", "mkfifo", "mknod", "mktemp", "mv", "nice"),
    *("nl", "nohup", "nproc", "numfmt", "od", "paste", "pathchk", "pr", "printenv", "printf", "ptx", "pwd"),
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
"""The tools that programs may start, if installed. None but awk interprets another general-purpose
language."""


def executable() -> str | None:
    """Return the path of bash, or None."""
    return shutil.which("bash", path=PATH)


def tools() -> list[str]:
    """Return the real paths of bash and its tools."""
    paths = (shutil.which(name, path=PATH) for name in TOOLS)
    return sorted({os.path.realpath(path) for path in paths if path is not None})


def supervisor_words() -> Iterator[str]:
    yield from (f"--shell-tool={path}" for path in tools())
    yield from (f"--library={path}" for path in cpp.LIBRARIES)
    yield from (f"--loader={path}" for path in cpp.loaders())


def find_missing_tool(layers: list[str]) -> tuple[str, str] | None:
    """Return the kind and message of a SandboxError if a zygote cannot offer the flavour, else None."""
    if missing := cpp.find_missing_layer(BASH, layers):
        return missing
    if not os.path.exists("/proc/thread-self/children"):
        message = "flavour 'bash' needs a kernel with CONFIG_PROC_CHILDREN, to find a program's processes"
        return "no_isolation", message
    if executable() is None:
        return "missing_import", f"flavour 'bash' needs bash in {PATH}: apt-get install bash"
    return None


def offered() -> bool:
    """Return True if this machine appears to support the flavour."""
    return cpp.can_confine() and find_missing_tool(["seccomp", "notify", "scratch"]) is None
