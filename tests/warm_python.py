"""A Python that has imported what rocstar imports from others, and forks a child for each command.

    a test ──> `executable` ARGUMENTS ──socket: arguments, environment, folder, open files 0 to 2──> this
                      ^────────────────────── exit code ────── its fork, which runs as `python ARGUMENTS`

Most of the time of a short command is importing torch and transformers. A fork has them at once, and nothing
of ours: the packages under test are imported in the child alone. What a fork cannot show keeps a Python of
its own: processes below it, what an environment sets before torch loads, other hash seeds. Who kills or stops
it from outside starts it as a `WarmProcess`.
Who waits: the client for its child. A client that ends first, or is late, has its child's session killed.
The folder goes with this process, which ends when its maker does, in whatever way.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

COMMON = (
    *("pytest", "pytest_asyncio.plugin", "pytest_timeout", "pytest_cov.plugin", "anyio.pytest_plugin"),
    *("xdist.plugin", "xdist.looponfail", "platformdirs.pytest_plugin", "_hypothesis_pytestplugin"),
    *("hypothesis", "numpy", "scipy.stats", "scipy.optimize", "sympy", "math_verify", "tokenizers"),
    *("torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.checkpoint"),
    *("torch.distributed.run", "transformers", "transformers.models.llama.modeling_llama"),
    *("transformers.models.qwen3.modeling_qwen3", "transformers.models.qwen2.modeling_qwen2"),
    *("pydantic", "msgspec", "aiohttp.web", "uvloop", "jinja2", "safetensors.torch", "rich.console"),
)
CLIENT = Path(__file__).with_name("warm_client.py")

FOLDER = "ROCSTAR_TESTS_WARM_PYTHON"
"""The variable that tells processes below where it is: one serves a whole session, its test processes, the
pytests that they start, and theirs."""


class Warm:
    """Has commands run in forks of the warm process.

    Invariant: a child sees the environment it is given and has no module of the packages under test.

    Args:
        folder: where its socket lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executable = folder / "python"
        """In place of `sys.executable`; `rocstar` lies beside it."""

    def pytest(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        cwd: Path,
        deadline_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest in a fork; its output is kept in `folder`."""
        command = [str(self.executable), "-m", "pytest", *arguments]
        with open(folder / "child.out", "w+") as out, open(folder / "child.err", "w+") as err:
            done = subprocess.run(
                command, stdout=out, stderr=err, cwd=cwd, env=environment, timeout=deadline_s, check=False
            )
        told = ((folder / name).read_text(errors="replace") for name in ("child.out", "child.err"))
        return subprocess.CompletedProcess(command, done.returncode, *told)


class WarmProcess(subprocess.Popen[str]):
    """A command that `Warm.executable` runs: SIGKILL and SIGSTOP are for the fork, not for who waits for it.

    Invariant: when `wait` returns, the fork is gone.
    """

    def send_signal(self, number: int) -> None:
        cannot_be_handled = number in (signal.SIGKILL, signal.SIGSTOP)
        super().send_signal(signal.SIGRTMIN + number if cannot_be_handled else number)


@cache
def warm() -> Warm:
    """The session's. Who is the first to ask starts the process, which ends with its maker."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = str(_started(Path(tempfile.mkdtemp(prefix="warm-"))))
    return Warm(Path(os.environ[FOLDER]))


def open_door(folder: Path) -> socket.socket:
    """Where `serve` takes commands, with the clients beside it; who comes before it serves waits for it.

    The folder's name is short, for a socket's is at most 107 bytes long.
    """
    for name in ("python", "rocstar"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{CLIENT.read_text()}")
        (folder / name).chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "opening"))
    listener.listen(64)
    (folder / "opening").rename(folder / "socket")  # by that name it is listened on, or its process is gone
    return listener


def _started(folder: Path) -> Path:
    """A process that listens there."""
    listener = open_door(folder)
    # Threads that wait must not spin; libgomp reads this once, before the first import of torch.
    environment = os.environ | {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    with listener:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno()), str(folder), *COMMON],
            stdin=subprocess.PIPE,  # whose end is its end
            cwd="/",
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # a terminal's interrupt is not for it: its maker's end is its own
        )
    _PROCESSES.append(process)
    return folder


_PROCESSES: list[subprocess.Popen[bytes]] = []
"""Held, or what is at the other end of its standard input would close."""


# --- the process itself ----------------------------------------------------------------------------------


class Order:
    """What a client wants run, and the descriptors for it."""

    def __init__(self, client: socket.socket) -> None:
        client.settimeout(30)
        length, descriptors, _, _ = socket.recv_fds(client, 8, 3)
        self.descriptors = descriptors
        text, left = b"", int.from_bytes(length, "little")
        while left and (piece := client.recv(left)):  # what comes behind it are signals
            text, left = text + piece, left - len(piece)
        told = json.loads(text)
        self.arguments: list[str] = told["arguments"]
        self.environment: dict[str, str] = told["environment"]
        self.cwd: str = told["cwd"]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def serve(listener: socket.socket) -> None:
    """Forks for who comes, until standard input ends. What is imported by now every fork has."""
    gc.collect()
    gc.freeze()  # or each child's pytest would go through all of torch's objects, twice
    given = _serve(listener)
    listener.close()
    if given is not None:
        _become(given)
        _end(_code_of(given.arguments))


def _serve(listener: socket.socket) -> Order | None:
    """In the parent for ever, or None when its maker is gone. In a child: what it is to run."""
    waiting = select.poll()
    clients: dict[int, tuple[socket.socket, int, int]] = {}  # by pidfd, and by the client's descriptor
    waiting.register(0, select.POLLIN)
    waiting.register(listener, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor == 0:
                for _, pid, _ in clients.values():
                    _kill(pid)
                return None
            if descriptor == listener.fileno():
                client, _ = listener.accept()
                try:
                    order = Order(client)
                except (OSError, ValueError):  # it is gone again
                    client.close()
                    continue
                if not (pid := os.fork()):
                    os.setsid()
                    return order
                order.close()
                pidfd = os.pidfd_open(pid)
                clients[pidfd] = clients[client.fileno()] = (client, pid, pidfd)
                waiting.register(pidfd, select.POLLIN)
                waiting.register(client, select.POLLIN)
            elif descriptor in clients:
                client, pid, pidfd = clients[descriptor]
                if descriptor == pidfd:
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(OSError):
                        client.sendall(code.to_bytes(4, "little", signed=True))
                    for one in (pidfd, client.fileno()):
                        del clients[one]
                        with contextlib.suppress(KeyError):  # its client was gone before it
                            waiting.unregister(one)
                    client.close()
                    os.close(pidfd)
                elif signals := _heard(client):
                    for number in signals:
                        os.kill(pid, number)
                else:
                    _kill(pid)
                    waiting.unregister(client)


def _heard(client: socket.socket) -> bytes:
    """Numbers of signals; nothing when it is gone."""
    try:
        return client.recv(64)
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become(order: Order) -> None:
    """The child as a Python of its own would be before it runs anything."""
    for target, descriptor in enumerate(order.descriptors):
        os.dup2(descriptor, target)
    order.close()
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    soon = "PYTHONUNBUFFERED" in os.environ
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _writing(1, "strict", soon or os.isatty(1))  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writing(2, "backslashreplace", True)  # type: ignore[misc]
    import random

    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = folders
    for folder in folders:
        if (site := Path(folder) / "sitecustomize.py").exists():
            exec(compile(site.read_text(), str(site), "exec"), {"__file__": str(site), "__name__": "site"})


def _writing(descriptor: int, errors: str, by_line: bool) -> io.TextIOWrapper:
    file = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), "utf-8", errors, line_buffering=by_line)


def _run(arguments: list[str]) -> None:
    """`python ARGUMENTS`, of its options those that tests use."""
    sys.orig_argv = [sys.executable, *arguments]
    is_safe = False
    while arguments[0] in ("-P", "-u"):
        is_safe |= arguments[0] == "-P"
        arguments = arguments[1:]
    what, *rest = arguments
    first = {"-m": os.getcwd(), "-c": "", "-": ""}.get(what, os.path.dirname(what))
    if not is_safe:
        sys.path.insert(0, first)
    if what == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what in ("-c", "-"):
        text, *rest = rest if what == "-c" else [sys.stdin.read(), *rest]
        sys.argv = [what, *rest]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), vars(main))
    else:
        sys.argv = arguments
        runpy.run_path(what, run_name="__main__")


def _code_of(arguments: list[str]) -> int:
    """Runs it and says how it ends: with this exit code, or by this signal if that is less than 0."""
    try:
        _run(arguments)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """What Python does at its end, but for freeing all modules: of torch's that alone takes 0.4 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None and not file.closed:
            file.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    own_fd, own_folder, *names = sys.argv[1:]
    for name in names:
        with contextlib.suppress(ImportError):  # an optional part that is not here
            importlib.import_module(name)
    serve(socket.socket(fileno=int(own_fd)))
    shutil.rmtree(own_folder, ignore_errors=True)
