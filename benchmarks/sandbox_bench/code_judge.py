"""The peer: Microsoft's code-judge, as a checkout with its own virtual environment, and redis-server.

    uvicorn (its API) <-> redis-server <-> run_workers.py -> python source.py per call

Its README's way to start it, in several settings. Limits are raised so that none of them decides: memory to
1 GiB, queue life to two minutes, output to 100,000 characters.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox_bench.processes import free_port, running, wait_for_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """workers: MAX_WORKERS; api: uvicorn processes; route: a batch route; chunk: its chunk size,
    MAX_BATCH_CHUNK_SIZE or MAX_LONG_BATCH_CHUNK_SIZE."""

    workers: int
    api: int
    route: str
    chunk: int

    @property
    def name(self) -> str:
        return f"{self.workers} workers, {self.api} uvicorn, {self.route} in chunks of {self.chunk}"


SETTINGS = (
    Setting(workers=2, api=1, route="/run/long-batch", chunk=100),
    Setting(workers=3, api=1, route="/run/long-batch", chunk=100),
    Setting(workers=4, api=1, route="/run/long-batch", chunk=100),
    Setting(workers=2, api=1, route="/run/batch", chunk=2),
    Setting(workers=2, api=1, route="/run/batch", chunk=64),
    Setting(workers=2, api=4, route="/run/long-batch", chunk=100),
)
"""The fourth is what its defaults give on two cores; four uvicorn workers are what its README starts."""


class CodeJudge:
    """A running code-judge. roots: the processes whose trees are its service CPU (with Redis and without)."""

    def __init__(self, setting: Setting, port: int, service: list[int], redis: int) -> None:
        self.setting, self.port = setting, port
        self.service_roots = service
        self.roots = [*service, redis]


def version(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def redis_version() -> str:
    binary = _redis_binary()
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _redis_binary() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        raise FileNotFoundError("no redis-server on the PATH, which code-judge needs; install redis-server")
    return binary


def interpreter(checkout: Path, python: Path | None = None) -> Path:
    found = (python or checkout / ".venv" / "bin" / "python").absolute()
    if not found.exists():
        raise FileNotFoundError(f"{found} does not exist: give code-judge a virtual environment")
    return found


@contextmanager
def code_judge(checkout: Path, setting: Setting, python: Path | None = None) -> Iterator[CodeJudge]:
    """Starts Redis, the API and the workers. python: the interpreter of its environment, by default
    CHECKOUT/.venv/bin/python; it must have numpy and sympy, as the programs import them."""
    run_with = interpreter(checkout, python)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="code-judge-")))
        redis_port, api_port = free_port(), free_port()
        arguments = ["--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        redis = stack.enter_context(
            running([_redis_binary(), *arguments], log=folder / "redis.log", cwd=folder)
        )
        wait_for_port(redis_port, redis)
        chunk_name = "MAX_LONG_BATCH_CHUNK_SIZE" if "long" in setting.route else "MAX_BATCH_CHUNK_SIZE"
        env = {
            "REDIS_URI": f"redis://127.0.0.1:{redis_port}",
            "MAX_WORKERS": str(setting.workers),
            "MAX_MEMORY": "1024",
            "MAX_QUEUE_WORK_LIFE_TIME": "120",
            "MAX_STDOUT_ERROR_LENGTH": "100000",
            "PYTHON_EXECUTOR_PATH": str(run_with),
            chunk_name: str(setting.chunk),
        }
        serve = [run_with, "-m", "uvicorn", "app.main:app", "--port", str(api_port)]
        serve += ["--workers", str(setting.api), "--log-level", "warning"]
        api = stack.enter_context(running(serve, log=folder / "api.log", cwd=checkout, env=env))
        work = [run_with, "run_workers.py"]
        workers = stack.enter_context(running(work, log=folder / "workers.log", cwd=checkout, env=env))
        wait_for_port(api_port, api)
        yield CodeJudge(setting, api_port, [api.pid, workers.pid], redis.pid)
