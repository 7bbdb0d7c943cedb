"""A fuzzer over pairs of bash programs: does what one of them does change what another one sees?

    python benchmarks/bash_pair_fuzz.py [--seconds 120] [--seed N] [--without LAYER...] [--pause S]
                                        [--out FILE]

    writer   a line of tools and built-ins, or a system call by native code that bash loads (`enable -f`),
             again and again, or as often one that does nothing, by a drawn coin, per round
    reader   another line, three times, or a call a hundred times; the digest of all that it says

As pair_fuzz.py otherwise, with the calls that a bash program may make. Lines are put together from what tools
there are, and paths, options and numbers that mean something. What differs between any two programs, the name
of their directory and their numbers, is left out of what a reader says.

The first pair must be found where programs share a user and see each other's numbers (`--without uid
namespaces`; everywhere for an ordinary user, docs/reference/threats.md): how many descriptors the other has.
`planted` says whether it was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sandbox_bench.fuzzer import (
    NEVER,
    Call,
    Trial,
    Tried,
    draw_call,
    finish_fuzz,
    options_of,
    pool_options,
    readable_of,
    tells,
    try_all,
)

from rocstar.sandbox import _native
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits

LIMITS = Limits(wall_s=4.0, cpu_s=4)
FORKS = frozenset((56, 57, 58, 59))
"""clone, fork, vfork and execve: what native code starts would say everything twice."""

NATIVE = r"""
static long ask(long n, const long *a) {
  register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
  __asm__ volatile("syscall" : "+a"(n) : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return n;
}
static long plain(long n, long a, long b, long c) {
  const long words[6] = {a, b, c};
  return ask(n, words);
}
static char room[4096];
static struct { long number, reads, kinds[6], values[6]; } call;
void begin(void) {
  long fd = plain(2, (long)"call", 0, 0);
  plain(0, fd, (long)&call, sizeof call);
  plain(3, fd, 0, 0);
  long known[5] = {0, (long)room, plain(2, (long)"LIBRARY", 0, 0), plain(2, (long)"own", 66, 384)};
  known[4] = plain(39, 0, 0, 0);
  for (int i = 0; i < 6; ++i) if (call.kinds[i]) call.values[i] = known[call.kinds[i]];
  unsigned long hash = 0xcbf29ce484222325;
  const long nap[2] = {0, 500000};
  for (int turn = 0; !call.reads || turn < 100; ++turn) {
    for (int i = 0; i < 4096; ++i) room[i] = 0;
    const long got = ask(call.number, call.values);
    if (!call.reads) {
      plain(1, 1, (long)"on\n", 3);
      plain(35, (long)nap, 0, 0);
    }
    for (int i = 0; i < 8; ++i) hash = (hash ^ (unsigned char)(got >> 8 * i)) * 0x100000001b3;
    for (int i = 0; i < 4096; ++i) hash = (hash ^ (unsigned char)room[i]) * 0x100000001b3;
  }
  char text[17];
  for (int i = 0; i < 16; ++i) text[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
  text[16] = '\n';
  plain(1, 1, (long)text, 17);
  plain(231, 0, 0, 0);
}
"""
FLAGS = "-Os -fPIC -shared -nostdlib -s -fno-builtin -fno-tree-loop-distribute-patterns -Wl,-init=begin"
KINDS = {"room": 1, "library": 2, "own": 3, "pid": 4}

PATHS = (
    *(
        "own",
        ".",
        "..",
        "../..",
        "/",
        "/dev",
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
        "/dev/fd/0",
        "/dev/pts",
    ),
    *(
        "/dev/shm",
        "/dev/stdin",
        "/dev/tty",
        "/lib",
        "/usr/lib",
        "/usr/bin",
        "/etc/ld.so.cache",
        "/etc/passwd",
    ),
    *(
        "/proc/self",
        "/proc/self/fd",
        "/proc/self/task",
        "/proc/self/ns/pid",
        "/proc/cpuinfo",
        "/proc/meminfo",
    ),
    *("/proc/1", "/proc/$PPID", "/proc/$PPID/fd", "/proc/loadavg", "/proc/sys/kernel/random/uuid", "/tmp"),
    *(
        "/sys/fs/cgroup",
        "/sys/devices/system/cpu/online",
        "/run",
        "/var",
        "/home",
        "/usr/bin/bash",
        "/bin/sh",
    ),
)
FIELDS = "abfghiostuwxyzBCDFGNTUXYZ"
"""Of `stat -c`: not %h of /proc, %i and %m alone, which are known or the same."""

WORDS = (
    "0",
    "1",
    "2",
    "9",
    "63",
    "64",
    "250",
    "-1",
    "4096",
    "1048576",
    "$PPID",
    "$$",
    "-n",
    "-l",
    "-a",
    "-f",
    "",
)
LINES = (
    *("stat -c %{field} {path}", "stat -L -c %{field} {path}", "stat -f -c %{field} {path}", "ls -la {path}"),
    *(
        "ls -d {path}/*",
        "readlink {path}",
        "realpath {path}",
        "cat {path} | head -c 4096",
        "head -c 64 {path}",
    ),
    *(
        "test -{test} {path}; echo $?",
        "[[ {path} -nt {path2} ]]; echo $?",
        "[[ {path} -ot {path2} ]]; echo $?",
    ),
    *(
        "echo {word} >{path}",
        "echo {word} >>{path}",
        "touch {path}",
        "mkdir -p {path}",
        "rm -rf own*",
        "wc -c {path}",
    ),
    *(
        "cp {path} own2",
        "mv own own2",
        "ln {path} own3",
        "ln -s {path} own4",
        "chmod 600 {path}",
        "chown 0 {path}",
    ),
    *(
        "truncate -s {word} own",
        "dd if={path} of=own bs=4096 count=4 status=none",
        "mkfifo own5",
        "mknod own6 p",
    ),
    *("dd if=/dev/zero of=own bs=1M count=3 status=none", "sync {path}", "exec 7<{path}", "exec 7<>{path}"),
    *(
        "exec 7<&0; exec 0<{path}",
        "ulimit -{limit}",
        "ulimit -S -{limit} {word}",
        "umask {word}",
        "kill -{word} $PPID",
    ),
    *(
        "kill -0 {word}",
        "kill -0 -- -{word}",
        "trap {word} USR1; kill -USR1 $$",
        "sleep 0.05 & wait",
        "jobs -l",
    ),
    *(
        "(for i in {{1..30}}; do sleep 0.2 & done; wait) 2>&1",
        "times",
        "nproc",
        "nproc --all",
        "id",
        "who",
        "users",
    ),
    *(
        "tty",
        "stty -a",
        "df {path}",
        "du -s {path}",
        "date +%Z",
        "uname -a",
        "hostid",
        "env",
        "set | sort | head -40",
    ),
    *("find {path} -maxdepth 1 | head -40", "read -r -t 0.01 line <{path}; echo $line", "cmp {path} {path2}"),
    *(
        "nice -n {word} true",
        "timeout 0.1 sleep 1",
        "mktemp",
        "printf %{word}s x",
        "sort -S 8M {path} | head -3",
    ),
    *(
        "diff <(ls {path}) <(ls {path2}) | head",
        "coproc cat; echo {word} >&${{COPROC[1]}}",
        "cd {path}; pwd; cd - ",
    ),
    *(
        "tail -c 64 {path}",
        "split -b 100 {path} own",
        "tee own7 <{path} | head -c 9",
        "shopt | head -40",
        "xxd -l 64 {path}",
    ),
    *(
        "echo {word} >/dev/tcp/127.0.0.1/{word}",
        "exec 8<>own5",
        "getopt a -a",
        "awk '{{print}}' {path} | head -c 999",
    ),
    *(
        "grep -c . {path}",
        "tput cols",
        "logname",
        "pathchk {path}",
        "shred -n1 own",
        "tar cf own8 {path}",
        "umask",
    ),
)
WRITING = """exec 2>/dev/null
line() {{ {line}
}}
idle() {{ {idle}
}}
what=({what})
while :; do "${{what[0]}}" >/dev/null </dev/null; echo on; sleep 0.01; done
"""
READING = """line() {{ {line}
}}
for turn in 1 2 3; do line </dev/null; echo $?; sleep 0.02; done >said 2>&1
sed -e "s|$PWD|HERE|g" -e "s|${{PWD%/*}}|BASE|g" -e "s|\\b$$\\b|OWN|g" -e "s|\\b$PPID\\b|PARENT|g" said |
  sha256sum
"""
BUILTINS = frozenset(
    (
        "test",
        "[[",
        "echo",
        "exec",
        "ulimit",
        "umask",
        "kill",
        "trap",
        "jobs",
        "times",
        "read",
        "cd",
        "printf",
        "shopt",
    )
)
LOADS = "while :; do enable -f ./code.so nothing; done"

PLANT_WRITES = 'for i in {10..180}; do eval "exec $i</dev/null"; done; echo on; sleep 2'
PLANT_READS = """first=$(($$ > 400 ? $$ - 400 : 2))
stat -c %s $(eval echo "/proc/{$first..$(($$ + 400))}/fd") 2>/dev/null |
  awk '$1 > 172 && $1 < 182 {n = 1} END {print n + 0}'
"""
"""No other process of the machine should have just as many."""


def build_native() -> bytes:
    """The library that bash loads: it makes the call that the file `call` says."""
    source = NATIVE.replace("LIBRARY", os.path.realpath(shutil.which("bash") or "/bin/bash"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "code.c").write_text(source)
        subprocess.run(["gcc", *FLAGS.split(), "-o", folder / "code.so", folder / "code.c"], check=True)
        return (folder / "code.so").read_bytes()


def packed(call: Call, *, reads: bool) -> bytes:
    kinds = [KINDS[word] if isinstance(word, str) else 0 for word in call[1]]
    values = [0 if isinstance(word, str) else word for word in call[1]]
    return struct.pack("=14q", call[0], reads, *kinds, *values)


def draw_line(rng: random.Random) -> str:
    return rng.choice(LINES).format(
        path=rng.choice(PATHS),
        path2=rng.choice(PATHS),
        word=rng.choice(WORDS),
        field=rng.choice(FIELDS),
        test=rng.choice("abcdefghkprstuwxGLNOS"),
        limit=rng.choice("cdeflmnpqrstuvx"),
    )


def planted(coin: bool) -> tuple[ExecRequest, ExecRequest]:
    code = PLANT_WRITES if coin else PLANT_WRITES.replace("180", "011")
    return ExecRequest(code=code, flavour="bash", limits=LIMITS), ExecRequest(
        code=PLANT_READS, flavour="bash", limits=LIMITS
    )


def draw_trial(rng: random.Random, calls: list[int], readable: list[int], native: bytes) -> Trial:
    """A writer and a reader, each a line or a call."""
    writer: Call | str = draw_call(rng, calls) if rng.random() < 0.4 else draw_line(rng)
    reader: Call | str = draw_call(rng, readable) if rng.random() < 0.4 else draw_line(rng)
    return Trial(writer=writer, reader=reader, pair=partial(requests_of, writer, reader, native))


def requests_of(
    writes: Call | str, reads: Call | str, native: bytes, coin: bool
) -> tuple[ExecRequest, ExecRequest]:
    if isinstance(writes, str):
        # As many processes in both: how many the machine has is known to show.
        idle = "/bin/true" if writes.split()[0] not in BUILTINS else ":"
        what = "line idle" if coin else "idle line"
        code = WRITING.format(line=writes, idle=idle, what=what)
        writer = ExecRequest(code=code, flavour="bash", limits=LIMITS)
    else:
        writer = loading(writes if coin else (39, writes[1]), native, reads=False)
    if isinstance(reads, str):
        return writer, ExecRequest(code=READING.format(line=reads), flavour="bash", limits=LIMITS)
    return writer, loading(reads, native, reads=True)


def loading(call: Call, native: bytes, *, reads: bool) -> ExecRequest:
    files = {"code.so": native, "call": packed(call, reads=reads)}
    return ExecRequest(code=LOADS, flavour="bash", limits=LIMITS, files=files)


def trials(rng: random.Random, numbers: list[int], native: bytes, writers: dict[str, int]) -> Iterator[Trial]:
    """writers: counts them by kind."""
    readable = readable_of(numbers)
    while True:
        trial = draw_trial(rng, numbers, readable, native)
        writers["line" if isinstance(trial.writer, str) else "call"] += 1
        yield trial


async def fuzz(
    options: argparse.Namespace, numbers: list[int], writers: dict[str, int]
) -> tuple[bool, Tried]:
    """Whether the planted pair was found, and what else."""
    rng, native = random.Random(options.seed), build_native()
    async with SandboxPool(("bash",), **pool_options(options)) as pool:
        found = await tells(pool, planted, rng)
        return found, await try_all(pool, trials(rng, numbers, native, writers), rng, options)


def main() -> int:
    options = options_of(__doc__, "bash_pair_fuzz")
    allowed = {number for number, kinds in _native.allowed_calls().items() if "shell" in kinds}
    numbers = sorted(allowed - NEVER - FORKS)
    writers = {"line": 0, "call": 0}
    found, tried = asyncio.run(fuzz(options, numbers, writers))
    about = {"writers": writers, "calls": len(numbers), "lines": len(LINES), "planted": found}
    return finish_fuzz("bash_pair_fuzz", options, tried, about)


if __name__ == "__main__":
    sys.exit(main())
