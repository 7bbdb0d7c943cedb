"""Runs one program in a confined child like an IPython cell and reports how it ended.

All of this runs after the fork. Standard output and error are the interpreter's own streams, which the zygote
opens and never writes to; the value of a trailing expression is written to its own pipe. Ordinary programs
are run by csrc/sandbox/programs.cpp, which calls this module for the rest.
"""

import _random
import ast
import atexit
import builtins
import contextlib
import io
import linecache
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from rocstar.sandbox import _native, files
from rocstar.sandbox.child import display, error_text, notebook, script

CELL = "<cell>"
CO_COROUTINE = 0x80
"""As in the module inspect, which not every zygote imports."""

Parts = tuple[types.CodeType | None, types.CodeType | None, bool]
COMPILED_DEPTH = 3
"""COMPILER_STACK_FRAME_SCALE of CPython."""

AWAIT_END_S = 0.1
"""Seconds for the cancellation of tasks that a cell has left running."""

VALUE_FD = 3
MEMORY_EXIT = 86
"""The exit code for an uncaught MemoryError. A program that forges it still counts as failed."""

EXCEPTHOOK = sys.excepthook
MAIN = types.ModuleType("__main__")


def make_main() -> None:
    """Create a new `__main__` module for the next program."""
    global MAIN
    MAIN = types.ModuleType("__main__")
    MAIN.__dict__["__builtins__"] = builtins
    MAIN.__dict__["__file__"] = script.NAME  # reserves the key: the child sets its own
    sys.modules["__main__"] = MAIN


@contextlib.contextmanager
def streams_opened() -> Iterator[None]:
    """Reopen standard output and error on a pipe, as in every child, because a stream keeps the capabilities
    of its first file, for example seeking. Used once, in the zygote; output meanwhile is dropped. Error is
    opened first, so that the lock of its buffer and the start of output's share a page."""
    read_end, pipe = os.pipe()
    own = {fd: os.dup(fd) for fd in (2, 1)}
    for fd in own:
        os.dup2(pipe, fd)
    streams = {"stderr": _open_stream(2, "stderr"), "stdout": _open_stream(1, "stdout")}
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    try:
        yield
    finally:
        for fd, kept in own.items():
            os.dup2(kept, fd)
        for end in (read_end, pipe, *own.values()):
            os.close(end)


def _open_stream(fd: int, name: str) -> io.TextIOWrapper:
    """Open an unbuffered stream (csrc/sandbox/prompt_writer.h): the output before a kill often explains
    it."""
    raw = io.FileIO(fd, "wb", closefd=False)
    raw.name = f"<{name}>"
    errors = "strict" if name == "stdout" else "backslashreplace"
    buffer = _native.make_prompt_writer(raw)
    stream = io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=True, write_through=True)
    stream.mode = "w"  # type: ignore[misc]
    return stream


def run_cell(code: bytes, seed: int) -> int:
    """Run a program from its UTF-8 source and return the exit code of this process."""
    if code[:1] == files.MARK:
        try:
            code, wanted = files.unpack_here(code)
        except OSError as error:
            return finish(not_written(error))
        display.begin(wanted)
    if any(word in code for word in RANDOM_WORDS):
        reseed(seed)
    if any(word in code for word in script.WORDS):
        script.write(code)
    return finish(run_source(code))


def not_written(error: OSError) -> int:
    """Report files that cannot be written, for example for lack of space, and return the exit code."""
    say(f"the files of this call cannot be written: {error.strerror}\n")
    return 1


RANDOM_WORDS = (*(b"rand", b"shuffle", b"scipy", b"statistics", b"networkx", b"rvs", b"uuid", b"secrets", b"64"),)
"""A program that uses the shared generators contains one of these words. One that hides the word gets the
zygote's fixed state: seeding changes eighty pages, half as many as a small program."""

UNUSUAL_WORDS = (*RANDOM_WORDS, *script.WORDS)
"""Programs that contain one of these words are run by `run_cell`."""


def reseed(seed: int) -> None:
    """Set this child's random state, which forked siblings share otherwise. The state is that of
    `random.seed(seed)`; the C method underneath changes fewer pages."""
    generator: Any = random._inst
    _random.Random.seed(generator, seed)
    generator.gauss_next = None
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(seed & 0xFFFFFFFF)
    if sympy_random := sys.modules.get("sympy.core.random"):
        _random.Random.seed(sympy_random.rng, seed)


def reseed_branch(seed: int) -> None:
    """Give a branch of a session a random state of its own. Run by a cell, which then does not count."""
    global _cells
    _cells = max(1, _cells - 1)  # the first cell alone seeds
    reseed(seed)


def run_session_cell(code: bytes, seed: int | None) -> tuple[int, bytes, bool]:
    """Run one cell of a session. Return (exit code, repr of its value, True if the process ends).

    The first cell seeds the random modules with `seed`; later cells continue from their state."""
    global _cells
    _cells += 1
    if _cells == 1:
        reseed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)
    values: list[str] = []
    try:
        if code[:1] == files.MARK:
            code, wanted = files.unpack_here(code)
            display.begin(wanted)
        else:
            display.begin(False)
    except OSError as error:
        exit_code = not_written(error)
        flush()
        return exit_code, b"", False
    try:
        exit_code = run_source(code, f"<cell {_cells}>", values.append)
    except SystemExit as stop:
        return finish(exit_code_of(stop)), b"", True
    flush()
    return exit_code, "".join(values).encode("utf-8", "replace"), False


_cells = 0


def run_source(code: bytes, name: str = CELL, take_value: "Callable[[str], object] | None" = None) -> int:
    """Run a program and return its exit code; write its traceback to standard error. With `take_value`, in a
    session, raise SystemExit."""
    try:
        source = code.decode("utf-8", "surrogatepass")
        keep_lines(_Lines([source]), name)
        value = evaluate(source, MAIN.__dict__, name)
        if value is not None:
            tell(value, take_value)
        if type(value) is types.CoroutineType:
            held, value = [value], None
            forget(held, name)
        display.show_figures()
        return 0
    except BaseException as error:  # a program may raise anything
        if isinstance(error, SystemExit) and take_value is not None:
            raise
        raised = error
    try:
        return ended_by(raised)  # outside of `except`: its __str__ must not see it as handled
    finally:
        del raised  # avoids a cycle of the traceback and this frame


def tell(value: object, take_value: "Callable[[str], object] | None" = None) -> None:
    """Report the value of a trailing expression."""
    (take_value or write_value)(_native.call_alone(repr, value))
    display.show_value(value)


def forget(held: list[Any], name: str = CELL) -> None:
    """Free a trailing coroutine in a frame of the cell's last line, because the interpreter's warning that it
    was never awaited names the line."""
    above = "".join(linecache.getlines(name)).rstrip().count("\n")
    exec(compile("\n" * above + "held.clear()", name, "exec"), {"held": held})


def ended_by(error: BaseException) -> int:
    """Return the exit code of a program that raised this; write the traceback to standard error, or call the program's
    `sys.excepthook`."""
    if isinstance(error, SystemExit):
        return exit_code_of(error)
    hook = getattr(sys, "excepthook", EXCEPTHOOK)
    if hook is EXCEPTHOOK:
        report(error)
    else:
        try:
            trace = error_text.own_trace(error)
            _native.call_alone(hook, type(error), error.with_traceback(trace), trace)
        except SystemExit as stop:
            return exit_code_of(stop)
        except BaseException as failed:  # the hook is the program's
            say("Error in sys.excepthook:\n")
            report(failed)
            say("\nOriginal exception was:\n")
            report(error)
    return MEMORY_EXIT if isinstance(error, MemoryError) else 1


def split_lines(source: str) -> list[str]:
    """Split as linecache splits a file: at newlines alone, with one after the last line, too."""
    lines = io.StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"  # the markers of a traceback depend on it
    return lines


class _Lines:
    """A cell's lines as linecache keeps those of a file, split when a traceback first reads one. held: a list of one
    source, which may be replaced later."""

    __slots__ = ("_held", "_lines", "_split_source")

    def __init__(self, held: list[str]) -> None:
        self._held = held
        self._split_source: str | None = None
        self._lines: list[str] = []

    def _split(self) -> list[str]:
        (source,) = self._held
        if self._split_source is not source:
            self._split_source, self._lines = source, split_lines(source)
        return self._lines

    def __len__(self) -> int:
        return len(self._split())

    def __getitem__(self, index: Any) -> Any:
        return self._split()[index]


def keep_lines(lines: _Lines, name: str) -> None:
    """Put the lines into linecache for tracebacks."""
    linecache.cache[name] = (0, None, lines, name)  # type: ignore[assignment]


def source_of_program() -> list[str]:
    """Return a list for the source of the next program, which the child fills: a new linecache entry would
    change ten pages there, and an attribute six."""
    held = [""]
    keep_lines(_Lines(held), CELL)
    return held


def evaluate(source: str, namespace: dict[str, Any], name: str = CELL) -> object:
    """Run the statements. Return the value of a trailing expression, or None without one or if a ';' hides
    it."""
    return _native.evaluate(source, namespace, name, evaluate_tree)


def evaluate_tree(source: str, namespace: dict[str, Any], name: str) -> object:
    try:
        parts = compiled(source, name)
    except RecursionError:
        parts = compiled_deeper(source, name)
    except SyntaxError as error:
        if (plain := notebook.without_commands(source, error)) is None:
            raise
        parts = compiled(plain, name)
    body, tail, is_shown = parts
    awaits = any(code is not None and code.co_flags & CO_COROUTINE for code in (body, tail))
    value = awaited(body, tail, namespace) if awaits else evaluated(body, tail, namespace)
    return value if is_shown else None


def compiled(source: str, name: str) -> Parts:
    """Compile a program. Return (code without a trailing expression, its code, True if its value is
    shown)."""
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if "await" in source or "async" in source else 0
    body = tail = None
    try:
        if isinstance(last, ast.Expr):
            tree.body.pop()
            tail = compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True)
        if tree.body:
            body = compile(tree, name, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        if error.text is None and error.lineno:  # the compiler reads it from the file, which is not there
            error.text = linecache.getline(name, error.lineno) or None
        raise
    return body, tail, not (isinstance(last, ast.Expr) and is_hidden(source, last))


def compiled_deeper(source: str, name: str) -> Parts:
    """Compile with the nesting limit of source text, which is three times that of a syntax tree."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(COMPILED_DEPTH * limit)
    try:
        return compiled(source, name)
    finally:
        sys.setrecursionlimit(limit)


def evaluated(body: types.CodeType | None, tail: types.CodeType | None, namespace: dict[str, Any]) -> object:
    if body is not None:
        _native.call_alone(exec, body, namespace)
    return None if tail is None else _native.call_alone(eval, tail, namespace)


def awaited(body: types.CodeType | None, tail: types.CodeType | None, namespace: dict[str, Any]) -> object:
    """Evaluate inside an event loop and cancel the tasks that the cell leaves running. Does not use
    asyncio.Runner, whose first interrupt does not stop code that does not await."""
    import asyncio

    async def whole() -> object:
        value: object = None
        for code in (body, tail):
            if code is None:
                continue
            value = eval(code, namespace)
            if code.co_flags & CO_COROUTINE:
                value = await value  # type: ignore[misc]
        return value if tail is not None else None

    whole.__code__ = whole.__code__.replace(co_filename="<await>")  # hides this frame from tracebacks
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return _native.call_alone(loop.run_until_complete, whole())
    finally:
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        if left:
            _native.call_alone(loop.run_until_complete, asyncio.wait(left, timeout=AWAIT_END_S))
        asyncio.set_event_loop(None)
        loop.close()


def is_hidden(source: str, last: ast.Expr) -> bool:
    """Return True if a semicolon follows the last expression."""
    if ";" not in source or last.end_lineno is None:
        return False
    line = split_lines(source)[last.end_lineno - 1].encode()
    return line[last.end_col_offset :].lstrip().startswith(b";")


def write_value(text: str) -> None:
    left = memoryview(_native.fit_value(text.encode("utf-8", "replace")))
    while left:
        left = left[os.write(VALUE_FD, left) :]


def exit_code_of(stop: SystemExit) -> int:
    """Return the exit code as the interpreter does: 0 for None, a number modulo 256, else print the value and
    return 1."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    try:
        text = str(stop.code)
    except BaseException:  # the value's class may be the program's
        text = ""
    say(f"{text}\n")
    return 1


def report(error: BaseException) -> None:
    """Write the traceback without the frames of libraries."""
    try:
        text = error_text.error_text(error) + error_text.limit_text(error)
    except MemoryError:
        traceback.clear_frames(error.__traceback__)
        text = f"{type(error).__name__}\n"
    except Exception:  # the error's class may be the program's
        text = error_text.last_line(error) or f"{type(error).__name__}\n"
    say(text)


def say(text: str) -> None:
    """Write to the original standard error, even if the program replaced sys.stderr; ignore a closed one, as
    the interpreter does."""
    try:
        sys.__stderr__.write(text)  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return


def finish(exit_code: int) -> int:
    """Join threads, run exit handlers and flush, as the interpreter does at exit."""
    if len(threading._active) > 1:  # type: ignore[attr-defined]
        _native.call_alone(threading._shutdown)  # type: ignore[attr-defined]
    if atexit._ncallbacks():
        _native.call_alone(atexit._run_exitfuncs)
    flush()
    return exit_code


def flush() -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, ValueError):  # replaced by something else, or closed
            continue
