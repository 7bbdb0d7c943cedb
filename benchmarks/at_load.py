"""Runs a command on a machine that is held busy: `python benchmarks/at_load.py --load 8 -- make test`.

Four times a second it counts the processes and threads that run or wait for a core (procs_running of
/proc/stat) and lets its own busy loops go on, or stops them: with the command and whatever else the machine
does they are to be about `--load`. A fixed number of loops would not do: the command is now four processes
and now none.

It ends with the command's exit code, after one line with the load that was held. Its loops die with it.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

EVERY_S = 0.25
PR_SET_PDEATHSIG = 1


def runnable() -> int:
    """Processes and threads that run or wait for a core now, this one left out."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("procs_running"):
            return int(line.split()[1]) - 1
    raise RuntimeError("/proc/stat has no procs_running")


def next_busy(target: int, sample: int, busy: int, limit: int) -> int:
    """How many loops should run from now on, when `sample` were runnable with `busy` of them.

    Half of the difference at a time, at least one: a sample is a moment, and the command's own number jumps.
    """
    missing = target - sample
    step = missing if abs(missing) < 2 else int(missing / 2)
    return min(limit, max(0, busy + step))


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Loops:
    """Processes that do nothing as fast as they can; the first `busy` run and the others are stopped."""

    def __init__(self, number: int) -> None:
        self.busy = number
        command = [sys.executable, "-S", "-c", "while True: pass"]
        self.processes = [subprocess.Popen(command, preexec_fn=die_with_parent) for _ in range(number)]

    def run(self, busy: int) -> None:
        for process in self.processes[self.busy : busy]:
            process.send_signal(signal.SIGCONT)
        for process in self.processes[busy : self.busy]:
            process.send_signal(signal.SIGSTOP)
        self.busy = busy

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@dataclass(slots=True)
class Held:
    """The samples of a run."""

    target: int
    samples: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.samples:
            return f"at_load: wanted {self.target} runnable; the command ended before a sample"
        return (
            f"at_load: wanted {self.target} runnable, held {fmean(self.samples):.1f} "
            f"(from {min(self.samples)} to {max(self.samples)} in {len(self.samples)} samples)"
        )


def hold(
    target: int,
    loops: Loops,
    ended: Callable[[], bool],
    *,
    sample: Callable[[], int] = runnable,
    sleep: Callable[[float], None] = time.sleep,
) -> Held:
    """Holds the load until `ended`."""
    held = Held(target)
    while not ended():
        now = sample()
        held.samples.append(now)
        loops.run(next_busy(target, now, loops.busy, len(loops.processes)))
        sleep(EVERY_S)
    return held


def run(command: Sequence[str], target: int) -> tuple[int, Held]:
    """Runs the command at that load: its exit code, as a shell has it, and what was held."""
    loops = Loops(target)
    try:
        with subprocess.Popen(command, preexec_fn=die_with_parent) as process:
            try:
                held = hold(target, loops, lambda: process.poll() is not None)
            except BaseException:  # Ctrl-C, too: the command ends with us
                process.terminate()
                raise
    finally:
        loops.end()
    code = process.returncode
    return (code if code >= 0 else 128 - code), held


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs a command on a machine that is held busy.")
    parser.add_argument("--load", type=int, default=8, help="runnable processes and threads (default: 8)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="put -- before it")
    options = parser.parse_args(arguments)
    if options.load < 1:
        parser.error(f"--load is {options.load}; it must be at least 1")
    if shutil.which(options.command[0]) is None:
        parser.error(f"there is no command {options.command[0]}")
    began = time.monotonic()
    try:
        code, held = run(options.command, options.load)
    except KeyboardInterrupt:
        return 130
    seconds = time.monotonic() - began
    print(f"{held}; {options.command[0]} ended with {code} after {seconds:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
