"""The plainest way to run a program in a warm interpreter: a fork without any confinement.

    python bare_fork.py '{"modules": [...], "warm_up": "...", "environment": {...}, "frozen": true}'

    stdin: a line of JSON, the programs  ->  a fork for each, one after the other  ->  stdout: a line of JSON,
                                             their outputs, null for one that failed

The first line of stdout says that it is warm.

It limits, hides and cleans up nothing, and imports nothing of rocstar: a call here costs fork, a pipe
and wait.
"""

import gc
import importlib
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

READ_BYTES = 1 << 16


def run(code: str) -> str | None:
    """The output of the program; None unless it came to its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(writing, 1)
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    printed = b""
    while part := os.read(reading, READ_BYTES):
        printed += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return printed.decode() if status == 0 else None


def get_warm(state: dict[str, Any]) -> None:
    os.environ.update(state["environment"])
    for name in state["modules"]:
        importlib.import_module(name)
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        exec(compile(state["warm_up"], "<warm-up>", "exec"), {"__name__": "warm_up"})
    if state["frozen"]:
        gc.collect()
        gc.freeze()


def main() -> None:
    get_warm(json.loads(sys.argv[1]))
    print("warm", flush=True)
    for line in sys.stdin.buffer:
        answer = json.dumps([run(code) for code in json.loads(line)]).encode() + b"\n"
        while answer:
            answer = answer[os.write(1, answer) :]


if __name__ == "__main__":
    main()
