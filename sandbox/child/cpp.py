"""The C++ flavour: its compiler, and the files that compilers and compiled programs may read and execute.

A request's code is compiled in one confined process and run in another (csrc/sandbox/compile.cpp). The
compiler can read only system files; the program only the libraries that it is linked to.
"""

import glob
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CPP: Final = "cpp"
"""The flavour's name."""

DEFAULT_COMMAND: Final = "g++ -O2 -std=c++17 -o {exe} {source}"

DEFAULT_COMPILE_S: Final = 20.0

PLACEHOLDERS: Final = {"source": "main.cpp", "exe": "program", "workdir": "."}
"""The values of the placeholders of a command. The files are in the compiler's working directory."""

_SYSTEM_TOOLS = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
LIBRARIES: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/zero", "/dev/urandom", "/dev/random"),
    *(f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")),
    *("/proc/cpuinfo", "/proc/meminfo"),
)
"""The system's files that a program may read, of any flavour."""

_LOADERS = ("/lib/ld-*.so*", "/lib64/ld-*.so*", "/lib/*/ld-*.so*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CppOptions:
    """command: compiles `{source}` to `{exe}`; split into words as by a shell, the first looked up in PATH.
    compile_s: the wall clock of a compilation, and the CPU time of each of its processes."""

    command: str = DEFAULT_COMMAND
    compile_s: float = DEFAULT_COMPILE_S

    def __post_init__(self) -> None:
        if not 0.1 <= self.compile_s <= 3600.0:
            raise ValueError(f"compile_s is {self.compile_s}. It must be in [0.1, 3600].")
        try:
            words = self.words()
        except (ValueError, KeyError, IndexError) as error:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            message = f"cpp_command is {self.command!r}: {error}. The placeholders are {known}."
            raise ValueError(message) from None
        if not words or not all(f"{{{name}}}" in self.command for name in ("source", "exe")):
            raise ValueError(f"cpp_command is {self.command!r}. It must contain {{source}} and {{exe}}.")

    def words(self) -> list[str]:
        """Return the command's words with the placeholders replaced."""
        return [word.format_map(PLACEHOLDERS) for word in shlex.split(self.command)]

    def executable(self) -> str | None:
        """Return the compiler's path, or None."""
        return shutil.which(self.words()[0])

    def supervisor_words(self) -> Iterator[str]:
        yield f"--compile-wall-us={round(self.compile_s * 1e6)}"
        own = []  # the prefix of a compiler that is not the system's, for example of a conda environment
        if compiler := self.executable():
            path = os.path.realpath(compiler)
            if not path.startswith(tuple(f"{folder}/" for folder in _SYSTEM_TOOLS)):
                own = [os.path.dirname(os.path.dirname(path))]
        for path in (*_SYSTEM_TOOLS, *own):
            yield f"--tool={path}"
        for path in (*LIBRARIES, *(f"{folder}/lib" for folder in own)):
            yield f"--library={path}"
        yield from (f"--loader={path}" for path in loaders())
        yield from (f"--keep={path}" for path in own)

    def zygote_words(self) -> list[str]:
        """Return the command to execute. Its first word is unchanged if no such program exists."""
        first, *rest = self.words()
        return [self.executable() or first, *rest]


def command_from(environment: Mapping[str, str]) -> str:
    """Return the command of code-judge's variables: CPP_COMPILE_COMMAND, or the default with
    CPP_COMPILER_PATH."""
    compiler = shlex.quote(environment.get("CPP_COMPILER_PATH") or "g++")
    return environment.get("CPP_COMPILE_COMMAND") or DEFAULT_COMMAND.replace("g++", compiler, 1)


def loaders() -> list[str]:
    """Return the dynamic loaders of this machine."""
    return list(dict.fromkeys(os.path.realpath(found) for name in _LOADERS for found in glob.glob(name)))


def find_missing_layer(flavour: str, layers: list[str]) -> tuple[str, str] | None:
    """Return the kind and message of a SandboxError if programs with descendants cannot be confined, else
    None."""
    missing = [name for name in ("seccomp", "notify", "scratch") if name not in layers]
    if missing:
        named = {
            "seccomp": "a system call filter",
            "notify": "seccomp user notification (Linux 5.5)",
            "scratch": "scratch directories, which need Landlock (Linux 5.13)",
        }
        what = " and ".join(named[name] for name in missing)
        return ("no_isolation", f"flavour {flavour!r} needs {what}. `rocstar sandbox doctor` shows the fix.")
    return None


def find_missing_tool(command: list[str], layers: list[str]) -> tuple[str, str] | None:
    """Return the kind and message of a SandboxError if a zygote cannot offer the flavour, else None."""
    if missing := find_missing_layer(CPP, layers):
        return missing
    if not os.access(command[0], os.X_OK):
        message = f"flavour 'cpp' needs the compiler {command[0]!r}: apt-get install g++"
        return "missing_import", message
    return None


def offered() -> bool:
    """Return True if this machine appears to support the flavour with its defaults."""
    return can_confine() and CppOptions().executable() is not None


def can_confine() -> bool:
    """Return True if the kernel has the layers that programs with descendants need."""
    try:
        from rocstar.sandbox import _native
    except ImportError:  # not built
        return False
    facts = _native.probe()
    return facts["seccomp"] and facts["user_notif"] and facts["landlock_abi"] > 0
