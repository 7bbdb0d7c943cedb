"""`rocstar sandbox serve` as a process of its own, and its batch dialects and single route as functions."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_bench.http_client import Answer, Client
from sandbox_bench.processes import free_port, running, wait_for_port
from sandbox_bench.programs import Program


@dataclass(frozen=True, slots=True)
class Service:
    """A running service; `pid` is the root of its process tree."""

    port: int
    pid: int

    def client(self) -> Client:
        return Client("127.0.0.1", self.port)


@contextmanager
def service(*options: str, user: int | None = None) -> Iterator[Service]:
    """Starts the service with further command line options, as `user` if one is given, and waits until it is
    ready."""
    port = free_port()
    command = [Path(sys.executable).with_name("rocstar"), "sandbox", "serve", "--port", str(port), *options]
    with tempfile.TemporaryDirectory(prefix="rocstar-bench-") as folder:
        log = Path(folder, "service.log")
        env = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        with running(command, log=log, env=env, user=user) as process:
            try:
                wait_for_port(port, process)
            except RuntimeError as error:
                raise RuntimeError(f"{error}\n{log.read_text(errors='replace')[-2000:]}") from None
            yield Service(port, process.pid)


@contextmanager
def bare_http() -> Iterator[Service]:
    """A handler of aiohttp that runs nothing, as a process like the service's."""
    port = free_port()
    here = Path(__file__).parents[1]
    paths = [str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "sandbox_bench.bare_http", str(port)]
    with tempfile.TemporaryDirectory(prefix="rocstar-bench-") as folder:
        log = Path(folder, "bare.log")
        with running(command, log=log, env={"PYTHONPATH": os.pathsep.join(paths)}) as process:
            wait_for_port(port, process)
            yield Service(port, process.pid)


def _checked(answer: Answer) -> Any:
    if answer.status != 200:
        raise RuntimeError(f"the service answered {answer.status}: {answer.body[:300]!r}")
    return answer.json()


def _stdout(result: dict[str, Any]) -> str | None:
    return result["stdout"] if result.get("status") == "ok" else None


async def native_batch(client: Client, programs: Sequence[Program]) -> list[str | None]:
    requests = [{"code": program.code} for program in programs]
    results = _checked(await client.post("/v1/batch", {"requests": requests}))["results"]
    return [_stdout(result) for result in results]


async def native_run(client: Client, program: Program) -> str | None:
    return _stdout(_checked(await client.post("/v1/run", {"code": program.code})))


async def judge_batch(
    client: Client, programs: Sequence[Program], route: str = "/run/long-batch"
) -> list[str | None]:
    """The code-judge dialect: ours and the original's."""
    submissions = [{"type": "python", "solution": program.code} for program in programs]
    results = _checked(await client.post(route, {"type": "batch", "submissions": submissions}))["results"]
    return [result["stdout"] if result["run_success"] else None for result in results]


class HttpSession:
    """A session behind the native API: its identity and a connection to it."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name

    @classmethod
    async def open(cls, client: Client) -> HttpSession:
        answer = await client.post("/v1/sessions", {"flavour": "stdlib"})
        if answer.status not in (200, 201):
            raise RuntimeError(f"no session: {answer.status} {answer.body[:300]!r}")
        return cls(client, answer.json()["id"])

    async def run(self, code: str) -> str | None:
        return _stdout(_checked(await self._client.post(f"/v1/sessions/{self._name}/run", {"code": code})))
