"""A Python that has imported what tests import from others, and forks a child for each run of pytest.

    Warm.pytest ──one line of JSON──> this file as a process ──fork──> pytest.main, its output in files
                <──exit code──

Most of the time of a child is importing torch and transformers. A fork has them at once, and nothing of ours:
the packages under test are imported in the child alone, through the finder that its `sitecustomize.py` puts
first.
Who waits: the caller for its child; a child that is late is killed with all that it started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

COMMON = (
    *("pytest", "numpy", "scipy.stats"),  # no plugin of pytest, which wants to rewrite its assertions first
    *("torch", "torch.distributed", "torch.distributed.fsdp", "transformers", "transformers.models.llama"),
    *("transformers.models.qwen3.modeling_qwen3", "transformers.models.llama.modeling_llama"),
    *("pydantic", "msgspec", "aiohttp.web", "uvloop", "jinja2", "safetensors.torch", "rich.console"),
)
LATE = -9
"""The exit code of a child that was killed for being late."""


class Warm:
    """The process, while the context lasts.

    Invariant: a child sees the environment it is given and has no module of the packages under test.
    """

    def __init__(self, *, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        # Threads that wait must not spin; libgomp reads this once, before the first import of torch.
        environment = os.environ | {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=environment,
        )

    def __enter__(self) -> Warm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def pytest(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest in a fork, with `folder`/sitecustomize.py first; its output is kept in `folder`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "cwd": str(cwd),
            "deadline_s": self._deadline_s,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm process is gone"
        if (code := int(answer)) == LATE:
            raise subprocess.TimeoutExpired(list(arguments), self._deadline_s)
        out, err = ((folder / name).read_text(errors="replace") for name in ("child.out", "child.err"))
        return subprocess.CompletedProcess(list(arguments), code, out, err)


def _serve() -> None:
    for name in COMMON:
        with contextlib.suppress(ImportError):  # an optional part that is not here
            importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _become(order)
        print(_waited(child, order["deadline_s"]), flush=True)


def _waited(child: int, deadline_s: float) -> int:
    descriptor = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([descriptor], [], [], deadline_s)
    finally:
        os.close(descriptor)
    with contextlib.suppress(ProcessLookupError):  # what it left behind, and itself if it is late
        os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if ended else LATE


def _become(order: dict[str, object]) -> None:
    """The child: never returns."""
    code = 1
    try:
        os.setsid()
        folder = Path(str(order["folder"]))
        for name, descriptor in (("child.out", 1), ("child.err", 2)):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        environment = order["environment"]
        assert isinstance(environment, dict)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(str(order["cwd"]))
        sys.path.insert(0, str(folder))
        site = folder / "sitecustomize.py"
        exec(compile(site.read_text(), str(site), "exec"), {"__file__": str(site), "__name__": "site"})
        import pytest

        arguments = order["arguments"]
        assert isinstance(arguments, list)
        # A plugin among what others import, anyio's: nothing of its own is asserted here.
        quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*quiet, *arguments]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
