"""A Python process that has imported the third-party packages of rocstar and forks a child for each command.

    test ──> `executable` ARGUMENTS ──socket: arguments, environment, folder, open files 0 to 2──> this
                      ^────────────────────── exit code ────── its fork, which runs as `python ARGUMENTS`

A short command spends most of its time importing torch and transformers; a fork has them at once. The
packages under test are imported in the child only. A test starts a fresh Python where a fork behaves
differently: for environment variables that torch reads at import, or another hash seed. A test that sends
SIGKILL or SIGSTOP uses `WarmProcess`. The client waits for its child; if the client ends first, the child's
session is killed. This process ends with the process that started it, and removes its folder.
"""

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
from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

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
"""The variable with the folder of the socket: one process serves a session and all processes below it."""


class Warm(NamedTuple):
    """The folder of the warm process's socket, and its client: a replacement of `sys.executable`.

    `rocstar` is in the same folder.
    """

    folder: Path

    @property
    def executable(self) -> Path:
        return self.folder / "python"


class WarmProcess(subprocess.Popen[str]):
    """A command run by `Warm.executable`; SIGKILL and SIGSTOP go to the fork, not to the client.

    When `wait` returns, the fork has ended.
    """

    def send_signal(self, number: int) -> None:
        cannot_be_handled = number in (signal.SIGKILL, signal.SIGSTOP)
        super().send_signal(signal.SIGRTMIN + number if cannot_be_handled else number)


@cache
def warm() -> Warm:
    """Return the session's warm process; the first call starts it."""
    if FOLDER not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="warm-"))
        listener = open_listener(folder)
        # Threads that wait must not spin; libgomp reads this once, before the first import of torch.
        environment = os.environ | {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
        with listener:
            process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(listener.fileno()), str(folder), *COMMON],
                stdin=subprocess.PIPE,  # the process ends when this pipe closes
                cwd="/",
                env=environment,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C must not end it before its starter
            )
        _PROCESSES.append(process)
        os.environ[FOLDER] = str(folder)
    return Warm(Path(os.environ[FOLDER]))


_PROCESSES: list[subprocess.Popen[bytes]] = []
"""References that keep the pipes to the processes' standard input open."""


def open_listener(folder: Path) -> socket.socket:
    """Write the clients into `folder` and open the socket that `serve` reads; early clients wait.

    The folder's name is short: a socket's path has 107 bytes at most.
    """
    for name in ("python", "rocstar"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{CLIENT.read_text()}")
        (folder / name).chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "opening"))
    listener.listen(64)
    (folder / "opening").rename(folder / "socket")  # the name appears once the socket is listened on
    return listener


# --- the process itself ----------------------------------------------------------------------------------


class Order:
    """A client's command, and its descriptors 0 to 2."""

    def __init__(self, client: socket.socket) -> None:
        client.settimeout(30)
        length, descriptors, _, _ = socket.recv_fds(client, 8, 3)
        self.descriptors = descriptors
        text, left = b"", int.from_bytes(length, "little")
        while left and (piece := client.recv(left)):  # the bytes after the text are signals
            text, left = text + piece, left - len(piece)
        order = json.loads(text)
        self.arguments: list[str] = order["arguments"]
        self.environment: dict[str, str] = order["environment"]
        self.cwd: str = order["cwd"]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def serve(listener: socket.socket) -> None:
    """Fork a child for each client until standard input ends; a child has every module imported so far."""
    gc.collect()
    gc.freeze()  # else each child's pytest would traverse all of torch's objects, twice
    order = _serve(listener)
    listener.close()
    if order is not None:
        _become(order)
        _end(_run(order.arguments))


def _serve(listener: socket.socket) -> Order | None:
    """Return None in the parent when standard input ends; in a child return the command to run."""
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
                except (OSError, ValueError):  # the client has ended
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
                        with contextlib.suppress(KeyError):  # the client has ended first
                            waiting.unregister(one)
                    client.close()
                    os.close(pidfd)
                elif signals := _received(client):
                    for number in signals:
                        os.kill(pid, number)
                else:
                    _kill(pid)
                    waiting.unregister(client)


def _received(client: socket.socket) -> bytes:
    """Return the numbers of signals to pass on, or no bytes if the client has ended."""
    try:
        return client.recv(64)
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become(order: Order) -> None:
    """Give the child the state of a fresh Python: descriptors, environment, folder, path, seeds."""
    for target, descriptor in enumerate(order.descriptors):
        os.dup2(descriptor, target)
    order.close()
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unbuffered = "PYTHONUNBUFFERED" in os.environ
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _writer(1, "strict", unbuffered or os.isatty(1))  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", True)  # type: ignore[misc]
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


def _writer(descriptor: int, errors: str, by_line: bool) -> io.TextIOWrapper:
    file = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), "utf-8", errors, line_buffering=by_line)


def _execute(arguments: list[str]) -> None:
    """Run `python ARGUMENTS`, with the options that tests use."""
    sys.orig_argv = [sys.executable, *arguments]
    is_safe = False
    while arguments[0] in ("-P", "-u"):
        is_safe |= arguments[0] == "-P"
        arguments = arguments[1:]
    program, *rest = arguments
    if not is_safe:
        sys.path.insert(0, {"-m": os.getcwd(), "-c": "", "-": ""}.get(program, os.path.dirname(program)))
    if program == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif program in ("-c", "-"):
        text, *rest = rest if program == "-c" else [sys.stdin.read(), *rest]
        sys.argv = [program, *rest]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), vars(main))
    else:
        sys.argv = arguments
        runpy.run_path(program, run_name="__main__")


def _run(arguments: list[str]) -> int:
    """Execute the command; return its exit code, or minus the signal that ends it."""
    try:
        _execute(arguments)
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
    """End as Python does, without freeing modules, which takes 0.4 s for torch."""
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
        with contextlib.suppress(ImportError):  # an optional package that is not installed
            importlib.import_module(name)
    serve(socket.socket(fileno=int(own_fd)))
    shutil.rmtree(own_folder, ignore_errors=True)
