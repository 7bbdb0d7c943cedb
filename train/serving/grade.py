"""`rocstar grade FILE|-`: the judge alone, over JSON Lines of {"answer", "text"} (contract 14).

    one reader ──rows──> at most WAITING graded at a time ──in order──> {"reward", "method"} a line

The reader waits for space, each row for a sandbox child, the writer for the oldest row. Memory is bounded by
the waiting rows, so that the input may be endless. An invalid row ends the work with an error that names its
line, after the rows before it are written.
"""

import asyncio
import contextlib
import json
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.types import Attempt, Failed, Outcome, Task, Turn
from rocstar.sandbox.extras import shell_command
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import SandboxError
from rocstar.train.recipe.config import RewardConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.own_reward import make_judge
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR

print_line = partial(print, flush=True)
WAITING = 64
"""Rows that are read and not yet written."""
MAX_LINE_BYTES = 16 << 20


def grade_file(path: str, *, mode: str, write: Callable[[str], object] = print_line) -> int:
    """Grade a file, or standard input for "-". Returns 0, or 1 if a row could not be graded.

    Raises ConfigError for an unreadable file and for an invalid row.
    """
    if path == "-":
        return asyncio.run(_grade(sys.stdin.buffer, "standard input", mode, write))
    with contextlib.ExitStack() as stack:
        try:
            lines = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise ConfigError(f"{path!r} cannot be read: {error.strerror}; give a file or -") from None
        return asyncio.run(_grade(lines, path, mode, write))


async def _grade(lines: IO[bytes], name: str, mode: str, write: Callable[[str], object]) -> int:
    failed = 0
    try:
        async with SandboxPool((VERIFIER_FLAVOUR,)) as pool:
            judge = make_judge(RewardConfig(mode=mode), pool)
            async for outcome in graded(_rows(lines, name), judge):
                failed += isinstance(outcome, Failed)
                row: dict[str, Any]
                if isinstance(outcome, Failed):
                    row = {"reward": None, "method": outcome.kind, "detail": outcome.detail}
                else:
                    row = {"reward": outcome.reward, "method": outcome.method}
                write(json.dumps(row))
    except SandboxError as error:
        raise ConfigError(
            f"the sandbox that grades cannot run: {error}; see `{shell_command('sandbox', 'doctor')}`"
        ) from None
    return 1 if failed else 0


async def graded(rows: Iterator[Attempt], judge: Judge) -> AsyncIterator[Outcome]:
    """Yield the outcome of each row, in order, each as soon as those before it are known.

    A separate thread reads the rows, at most WAITING ahead of the writer. An error of the rows is raised
    after the outcomes before it.
    """
    loop, space = asyncio.get_running_loop(), threading.Semaphore(WAITING)
    read: asyncio.Queue[Attempt | ConfigError | None] = asyncio.Queue()

    def read_rows() -> None:
        """Put each row, then None or the error that is the end."""
        last: ConfigError | None = None
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter
            try:
                for row in rows:
                    space.acquire()
                    loop.call_soon_threadsafe(read.put_nowait, row)
            except ConfigError as error:
                last = error
            except OSError as error:
                last = ConfigError(f"the rows cannot be read on: {error.strerror}")
            loop.call_soon_threadsafe(read.put_nowait, last)

    # A daemon, because a read of a terminal's next line cannot be interrupted.
    threading.Thread(target=read_rows, name="rows", daemon=True).start()
    waiting: deque[asyncio.Task[Outcome]] = deque()
    arriving: asyncio.Task[Attempt | ConfigError | None] | None = asyncio.create_task(read.get())
    error: ConfigError | None = None
    try:
        while arriving is not None or waiting:
            awaited = [task for task in (arriving, *list(waiting)[:1]) if task is not None]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if arriving is not None and arriving.done():
                row = arriving.result()
                if isinstance(row, Attempt):
                    waiting.append(asyncio.create_task(judge.score(row, deadline=None)))
                    arriving = asyncio.create_task(read.get())
                else:
                    arriving, error = None, row
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
                space.release()
    finally:
        for task in (*waiting, *([arriving] if arriving is not None else [])):
            task.cancel()
    if error is not None:
        raise error


def _rows(lines: IO[bytes], name: str) -> Iterator[Attempt]:
    number = 0
    while line := lines.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise ConfigError(f"line {number} of {name} is longer than {MAX_LINE_BYTES >> 20} MiB; split the text")
        if line.strip():
            yield _row(line, f"line {number} of {name}")


def _row(line: bytes, where: str) -> Attempt:
    fix = 'write {"answer": "42", "text": "<answer>\\\\boxed{42}</answer>"}, one object a line'
    try:
        # A number keeps its digits: 0.10 is not turned into 0.1.
        row = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON ({error}); {fix}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is {_kind(row)}, not an object; {fix}")
    for key in ("answer", "text"):
        if not isinstance(row.get(key), str):
            raise ConfigError(f"{where}: {key!r} is {_kind(row.get(key))}, not a text; {fix}")
    task = Task(id=where, source="grade", question="", answer=row["answer"])
    turn = Turn(start=0, end=1, text=row["text"], stopped=True)
    return Attempt(task=task, turns=(turn,), is_truncated=False)


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
