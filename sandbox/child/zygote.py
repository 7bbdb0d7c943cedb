"""The zygote: imports and warms up a flavour, then forks children in the native loop.

The supervisor starts it with the code ZYGOTE of sandbox/pool/process.py. It reports readiness or a startup
error on the inherited socket and then receives requests to fork. Its environment contains nothing of the
pool's.
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
    """Run the zygote. Return 0 when the supervisor is gone, 3 if the flavour cannot start."""
    options = parse_arguments(argv)
    if not _native.die_with_parent(options.parent):
        return 0
    _native.say_at(options.fd, "starting")
    # SIGINT interrupts a cell; a background job of a shell, and its children, would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.flavour in (cpp.CPP, bash.BASH):
        return serve_tools(options)
    flavour = {**FLAVOURS, **user_flavours.decode_flavours(options.declared)}[options.flavour]
    step = "starting"  # for the error if the zygote cannot start

    def begin(name: str) -> None:
        nonlocal step
        step = name
        _native.say_at(options.fd, name)

    try:
        if options.packages:
            user_flavours.prepend_site([options.packages])
        if flavour.site:
            user_flavours.prepend_site(user_flavours.site_paths(flavour.site))
        preload(flavour, begin)
    except MemoryError:
        raise  # it may be temporary: the supervisor starts another zygote
    except BaseException as error:  # a package may raise anything
        from rocstar.sandbox.child.startup_error import startup_error

        _native.say_fatal(options.fd, json.dumps(startup_error(flavour, step, error)))
        return 3
    layers = options.layers.split(",")
    begin("compacting its memory")
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


def serve_tools(options: argparse.Namespace) -> int:
    """Serve C++ or bash without imports: the children run a compiler and its output, or bash."""
    layers, command = options.layers.split(","), json.loads(options.compile)
    is_cpp = options.flavour == cpp.CPP
    if missing := cpp.find_missing_tool(command, layers) if is_cpp else bash.find_missing_tool(layers):
        kind, message = missing
        _native.say_fatal(options.fd, json.dumps({"kind": kind, "message": message}))
        return 3
    truncate, counted = "truncate" in layers, "threads" in layers
    if is_cpp:
        native = _native.Layers(seccomp=True, notify=True, truncate=truncate, threads=counted)
        _native.serve_cpp(options.fd, layers=native, command=command, preload=script.preload())
    else:
        path = bash.executable()
        assert path is not None
        native = _native.Layers(seccomp=True, notify=True, truncate=truncate, processes=counted)
        _native.serve_shell(options.fd, layers=native, bash=path, preload=script.preload())
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    # A fixed width avoids the import of shutil, whose shared libraries every fork would copy.
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.child.zygote", formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100)
    )
    parser.add_argument("--flavour", required=True)
    parser.add_argument("--declared", default="{}", help="user flavours, as JSON")
    parser.add_argument("--packages", default="", help="rocstar's folder, if separate")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument(
        "--parent", type=int, required=True, help="pid of the supervisor, whose death ends this process"
    )
    parser.add_argument("--layers", default="", help="names of the isolation layers, separated by commas")
    parser.add_argument("--compile", default="[]", help="the compile command of C++ programs: words as JSON")
    return parser.parse_args(argv)


def preload(flavour: Flavour, begin: Callable[[str], None] = lambda step: None) -> None:
    """Import the flavour's modules and run its warm-up; call `begin` with each step. Raises their
    exceptions."""
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
    """Discard the warnings of packages, for example of caches that they cannot write. Crashes are still
    reported."""
    sys.stderr.flush()
    own = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    if not (was_enabled := faulthandler.is_enabled()):
        faulthandler.enable(own, all_threads=False)
    try:
        yield
    finally:
        if not was_enabled:
            faulthandler.disable()
        sys.stderr.flush()
        os.dup2(own, 2)
        os.close(own)


def rehearse() -> None:
    """Run the code of a cell until the interpreter has specialized it, which changes pages."""
    for _ in range(12):
        cell.run_source(b"None\nprint(end='')")
    cell.run_source(b"None")
    own = sys.__stderr__
    vars(sys)["__stderr__"] = io.StringIO()
    for _ in range(12):
        for faulty in (b"print(undefined)", b"print(1", b"1 / 0"):
            cell.run_source(faulty)
    vars(sys)["__stderr__"] = own


def wait_for_idle_threads(patience_s: float = 2.0) -> None:
    """Wait until the threads of packages are idle or have ended. A thread that is running when they are
    forgotten may hold a lock, for which every child would then wait indefinitely."""
    give_up, before = time.monotonic() + patience_s, ""
    while threading.active_count() > 1 and time.monotonic() < give_up:
        time.sleep(0.02)  # lets them run; there is no event to wait for
        others = sorted(set(os.listdir("/proc/self/task")) - {str(os.getpid())})
        now = "".join(switches_of(f"/proc/self/task/{thread}/status") for thread in others)
        if now == before and not any(f"State:\t{under_way}" in now for under_way in "RD"):
            return
        before = now


def switches_of(status: str) -> str:
    """Return a thread's number of context switches and state; it is idle if both are unchanged and it does
    not run."""
    with contextlib.suppress(OSError), open(status) as file:
        return status + "".join(line for line in file if line.startswith("State:") or "ctxt_switches" in line)
    return ""


def settle() -> None:
    """Prepare a heap that forks cheaply, and remove exit handlers of the zygote that a child would run."""
    cell.make_main()
    script.settle()
    sys.modules[figures.__name__] = figures  # the name that MPLBACKEND uses
    vars(builtins)["display"] = display.display
    if tempfile := sys.modules.get("tempfile"):
        vars(tempfile)["tempdir"] = None  # each child has another
    rehearse()
    atexit._clear()
    wait_for_idle_threads()
    # Forget the threads of packages: a child does not have them and would wait for them at exit.
    threading._after_fork()  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    _native.use_up_free_objects()
    if not _native.compact_memory():
        _native.collapse_heap()


def make_last() -> _native.Programs:
    """Allocate the objects that each child changes next to the first objects that it creates, because the
    kernel copies each changed page. A last rehearsal fills lookup caches of stream classes and shared
    libraries."""
    gc.collect()  # empties the free lists, which would be used first
    _native.use_up_free_memory()
    _native.put_first_objects_together()
    cell.make_main()
    with cell.streams_opened():
        programs = _native.Programs(cell)
        programs.run(b"None\nprint(0)", None)
    gc.collect()
    gc.freeze()
    return programs
