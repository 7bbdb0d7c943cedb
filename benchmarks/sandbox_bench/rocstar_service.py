"""`rocstar sandbox serve` as a process of its own, its batch route and its sessions."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_bench.http_client import Answer, Client
from sandbox_bench.programs import Program

from rocstar.sandbox import proctree

START_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 15.0
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
"""Environment of a measured process: variables that slow Python down must not decide a comparison."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service; `pid` is the root of its process tree."""

    port: int
    pid: int

    def client(self) -> Client:
        return Client("127.0.0.1", self.port)


@contextmanager
def service(*options: str) -> Iterator[Service]:
    """Start the service with further command line options, and stop it and its tree at the end.

    RuntimeError: it ended, or does not listen in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("rocstar"), "sandbox", "serve", "--port", str(port), *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            if not _listens(port, process):
                log.seek(0)
                said = log.read()[-2000:].decode(errors="replace")
                raise RuntimeError(f"no service on port {port} after {START_TIMEOUT_S:.0f} s:\n{said}")
            yield Service(port, process.pid)
        finally:
            _stop(process)


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the port accepts; False if the process ended or time is up."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to whatever is left of its tree."""
    family = [member.pid for member in proctree.tree([process.pid])]
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _checked(answer: Answer) -> Any:
    if answer.status not in (200, 201):
        raise RuntimeError(f"the service answered {answer.status}: {answer.body[:300]!r}")
    return answer.json()


def _stdout(result: dict[str, Any]) -> str | None:
    return result["stdout"] if result.get("status") == "ok" else None


async def native_batch(client: Client, programs: Sequence[Program]) -> list[str | None]:
    requests = [{"code": program.code} for program in programs]
    results = _checked(await client.post("/v1/batch", {"requests": requests}))["results"]
    return [_stdout(result) for result in results]


class HttpSession:
    """A session behind the native API: its identity and a connection to it."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name

    @classmethod
    async def open(cls, client: Client) -> HttpSession:
        return cls(client, _checked(await client.post("/v1/sessions", {"flavour": "stdlib"}))["id"])

    async def run(self, code: str) -> str | None:
        return _stdout(_checked(await self._client.post(f"/v1/sessions/{self._name}/run", {"code": code})))
