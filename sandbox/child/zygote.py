"""The process that children are forked from: import, warm up, then hand over to the native loop for ever.

Started by the supervisor with the code ZYGOTE of sandbox/pool/process.py; says hello or why not on the
socket it inherits, and from then on takes orders to fork. Its environment holds nothing of the pool's.
"""

import argparse
import atexit
import builtins
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from rocstar.sandbox import _native
from rocstar.sandbox.child import bash, cell, cpp, display, figures, lazy_import, script, user_flavours
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 once the supervisor is gone; 3 when the flavour cannot be offered."""
    options = parse_arguments(argv)
    if not _native.die_with_parent(options.parent):
        return 0
    _native.say_at(options.fd, "starting")
    # A cell is asked to stop by SIGINT, which a shell's background job, and all that it starts, ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.flavour == cpp.CPP:
        return serve_cpp(options)
    if options.flavour == bash.BASH:
        return serve_bash(options)
    flavour = {**FLAVOURS, **user_flavours.decode_flavours(options.declared)}[options.flavour]
    steps = StartSteps(options.fd)
    try:
        if options.packages:
            user_flavours.prepend_site([options.packages])
        if flavour.site:
            user_flavours.prepend_site(user_flavours.site_paths(flavour.site))
        preload(flavour, steps.begin)
    except MemoryError:
        raise  # which may pass: another zygote is tried
    except BaseException as error:  # whatever a package raises, it raises again the next time
        from rocstar.sandbox.child.startup_error import startup_error

        _native.say_fatal(options.fd, json.dumps(startup_error(flavour, steps.last, error)))
        return 3
    layers = options.layers.split(",")
    steps.begin("settling its memory")
    settle()
    programs = make_last()
    _native.serve(
        options.fd,
        layers=_native.Layers(
            seccomp="seccomp" in layers,
            notify="notify" in layers,
            truncate="truncate" in layers,
            threads="threads" in layers,
            hides="namespaces" in layers,
        ),
        hello="",
        programs=programs,
        run_session_cell=cell.run_session_cell,
    )
    return 0


def serve_cpp(options: argparse.Namespace) -> int:
    """Nothing is imported or warmed up: the children run a compiler and what it made."""
    command, layers = json.loads(options.compile), options.layers.split(",")
    if lacking := cpp.lacks(command, layers):
        kind, message = lacking
        _native.say_fatal(options.fd, json.dumps({"kind": kind, "message": message}))
        return 3
    native = _native.Layers(
        seccomp=True, notify=True, truncate="truncate" in layers, threads="threads" in layers
    )
    _native.serve_cpp(options.fd, layers=native, command=command, preload=script.preload())
    return 0


def serve_bash(options: argparse.Namespace) -> int:
    """Nothing is imported here either: the children run bash and what that starts."""
    layers, path = options.layers.split(","), bash.executable()
    if lacking := bash.lacks(layers):
        kind, message = lacking
        _native.say_fatal(options.fd, json.dumps({"kind": kind, "message": message}))
        return 3
    assert path is not None
    native = _native.Layers(
        seccomp=True, notify=True, truncate="truncate" in layers, processes="threads" in layers
    )
    _native.serve_shell(options.fd, layers=native, bash=path, preload=script.preload())
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    # A formatter with a width does not import shutil, whose shared libraries every fork would copy.
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.child.zygote",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
    parser.add_argument("--flavour", required=True)
    parser.add_argument("--declared", default="{}", help="flavours of a user's own, as JSON")
    parser.add_argument("--packages", default="", help="the folder that rocstar was installed into, if apart")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument(
        "--parent", type=int, required=True, help="pid of the supervisor, whose death ends this process"
    )
    parser.add_argument("--layers", default="", help="what the native part enters, by name, with commas")
    parser.add_argument("--compile", default="[]", help="how a C++ program is compiled: words as JSON")
    return parser.parse_args(argv)


class StartSteps:
    """What the zygote is at, told to the supervisor, which knows then where it died."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.last = "starting"

    def begin(self, step: str) -> None:
        self.last = step
        _native.say_at(self._fd, step)


def preload(flavour: Flavour, begin: Callable[[str], None] = lambda step: None) -> None:
    """Imports the flavour's modules and runs its warm-up; `begin` is told of each. Raises what they raise."""
    os.environ.update(flavour.environment)
    with silence():
        for name in flavour.lazy_modules:
            lazy_import.install_lazy_import(name)
        for name in flavour.modules:
            begin(f"importing {name}")
            importlib.import_module(name)
        begin("warming up")
        exec(compile(flavour.warm_up, "<warm-up>", "exec"), {"__name__": "warm_up"})
    for name in flavour.environment:
        del os.environ[name]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Packages warn of what no program sees: of caches they cannot write, of running without a clock. Where
    one crashes is told all the same."""
    sys.stderr.flush()
    own = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    if not (tells := faulthandler.is_enabled()):
        faulthandler.enable(own, all_threads=False)
    try:
        yield
    finally:
        if not tells:
            faulthandler.disable()
        sys.stderr.flush()
        os.dup2(own, 2)
        os.close(own)


def rehearse() -> None:
    """Runs the way of a cell until the interpreter has adapted its code to it, which changes pages."""
    for _ in range(12):
        cell.run_source(b"None\nprint(end='')")
    cell.run_source(b"None")
    own = sys.__stderr__
    vars(sys)["__stderr__"] = io.StringIO()
    for _ in range(12):
        for faulty in (b"print(undefined)", b"print(1", b"1 / 0"):  # the ways of error_text.py
            cell.run_source(faulty)
    vars(sys)["__stderr__"] = own


def let_threads_rest(patience_s: float = 2.0) -> None:
    """Threads that a package has started come to where they wait, or to their end. One that was under way
    when they were forgotten held a lock for ever, for which every child then waited."""
    give_up, before = time.monotonic() + patience_s, ""
    while threading.active_count() > 1 and time.monotonic() < give_up:
        time.sleep(0.02)  # which is their time; that they have come to rest is told by nobody
        others = sorted(set(os.listdir("/proc/self/task")) - {str(os.getpid())})
        now = "".join(turns_of(f"/proc/self/task/{thread}/status") for thread in others)
        if now == before and not any(f"State:\t{under_way}" in now for under_way in "RD"):
            return
        before = now


def turns_of(status: str) -> str:
    """Which thread it is, how often it was put to rest, and its state: one that waits for a processor has
    not been put to rest again, and is not at rest."""
    with contextlib.suppress(OSError), open(status) as file:
        return status + "".join(line for line in file if line.startswith("State:") or "ctxt_switches" in line)
    return ""


def settle() -> None:
    """Leaves a heap that forks cheaply, and nothing of the zygote that a child would run at its end."""
    cell.make_main()
    script.settle()
    sys.modules[figures.__name__] = figures  # whatever this process was started as
    vars(builtins)["display"] = display.display
    if tempfile := sys.modules.get("tempfile"):
        vars(tempfile)["tempdir"] = None  # a child has its own
    rehearse()
    atexit._clear()
    let_threads_rest()
    # No child has the threads that a package has started here, and each would wait for them at its end.
    threading._after_fork()  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    _native.use_up_free_objects()
    if not _native.compact_memory():
        _native.collapse_heap()


def make_last() -> _native.Programs:
    """Makes what each child changes, side by side with what a child makes first: a page that it changes is
    copied. What is looked up for the first time, in the classes of streams or in shared libraries, would be
    in each child: a last rehearsal looks it up."""
    gc.collect()  # which empties the lists of freed objects, whose places would be taken first
    _native.use_up_free_memory()
    _native.put_first_objects_together()
    cell.make_main()
    with cell.streams_opened():
        programs = _native.Programs(cell)
        programs.run(b"None\nprint(0)", None)
    gc.collect()
    gc.freeze()
    return programs
