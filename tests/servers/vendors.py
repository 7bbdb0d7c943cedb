"""Real servers of OpenAI's /v1/completions, started as their makers start them, each in its own environment.

vLLM       ROCSTAR_VLLM_PYTHON        the interpreter that has it
SGLang     ROCSTAR_SGLANG_PYTHON
llama.cpp  ROCSTAR_LLAMACPP_PYTHON    one that has the package xllamacpp
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rocstar.engine.inference.openai_formats import EndpointFormat
from rocstar.engine.inference.sglang.replica import SERVER_ENV, server_command
from rocstar.engine.inference.sglang.server import ServerProcess, free_port
from tests.fakes.sglang.exchanges import CPU_ARGS

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "runs" / "test-servers" / "logs"
NAME = "theirs"
"""What a server calls the model."""
CONTEXT = 1024
"""Tokens of a prompt and its answer together."""
START_S = 900.0
Counted = Callable[[aiohttp.ClientSession, str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A kind of server.

    Attributes:
        command: interpreter, model and port to the command line.
        env: what its environment has beside ours.
        longest: tokens of an answer behind a short prompt, for which there is surely room.
        unending: fields of a request that keep a policy from ending its turn before `longest`.
        running: how many requests it has now, asked of the server itself.
    """

    name: str
    variable: str
    form: EndpointFormat
    command: Callable[[str, Path, int], list[str]]
    running: Counted
    env: dict[str, str]
    longest: int
    unending: dict[str, Any]

    @property
    def python(self) -> str:
        """Its interpreter, absolute; empty where there is none."""
        named = os.environ.get(self.variable)
        return str(Path(named).absolute()) if named else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers at `url`, which ends with /v1."""

    vendor: Vendor
    url: str
    model: Path
    session: aiohttp.ClientSession

    async def running(self) -> int:
        """Requests that it works on now."""
        return int(await self.vendor.running(self.session, self.url.removesuffix("/v1")))


@contextlib.asynccontextmanager
async def started(vendor: Vendor, model: Path) -> AsyncIterator[Running]:
    """The server, which ends with the block, or one that runs already."""
    if there := os.environ.get(vendor.variable.replace("_PYTHON", "_URL")):
        async with _client() as session:
            yield Running(vendor=vendor, url=there, model=model, session=session)
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = LOGS / f"{vendor.name}.log"
    process = ServerProcess(vendor.command(vendor.python, model, port), log_path=log, env={**SERVER_ENV, **vendor.env})
    async with process, _client() as session:

        async def answers() -> bool:
            try:
                async with session.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=10)) as told:
                    return told.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False

        await process.wait_ready(answers, deadline_s=START_S, progress=print)
        yield Running(vendor=vendor, url=f"{url}/v1", model=model, session=session)


def _client() -> aiohttp.ClientSession:
    """A connection a request: llama.cpp closes those that it keeps without a word."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


def _vllm(python: str, model: Path, port: int) -> list[str]:
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    named = ["--served-model-name", NAME, "--host", "127.0.0.1"]
    sizes = ["--max-model-len", str(CONTEXT), "--max-num-seqs", "32", "--dtype", "float32"]
    return [*command, *named, *sizes, "--enforce-eager"]


def _sglang(python: str, model: Path, port: int) -> list[str]:
    args = {**CPU_ARGS, "max-total-tokens": 4 * CONTEXT, "served-model-name": NAME, "context-length": CONTEXT}
    return server_command(python, model, port, args | {"chunked-prefill-size": CONTEXT // 4})


def _llamacpp(python: str, model: Path, port: int) -> list[str]:
    return [python, str(Path(__file__).with_name("llama_server.py")), str(model), str(port), str(CONTEXT)]


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as told:
        return await told.json()


async def _running_vllm(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/metrics") as told:
        lines = (await told.text()).splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    counts = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)]
    assert counts, "vLLM's metrics have other names"
    return int(sum(counts))


async def _running_sglang(session: aiohttp.ClientSession, url: str) -> int:
    loads = await _json(session, f"{url}/v1/loads?include=core")
    return sum(rank["num_running_reqs"] + rank["num_waiting_reqs"] for rank in loads["loads"])


async def _running_llamacpp(session: aiohttp.ClientSession, url: str) -> int:
    return sum(slot["is_processing"] for slot in await _json(session, f"{url}/slots"))


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
VLLM = Vendor(
    name="vllm",
    variable="ROCSTAR_VLLM_PYTHON",
    form=EndpointFormat.SENT_IDS,
    command=_vllm,
    running=_running_vllm,
    env={**ONE_THREAD, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    longest=900,
    unending={"min_tokens": 900},
)
SGLANG = Vendor(
    name="sglang",
    variable="ROCSTAR_SGLANG_PYTHON",
    form=EndpointFormat.SENT_IDS,
    command=_sglang,
    running=_running_sglang,
    env={**ONE_THREAD, "SGLANG_CPU_OMP_THREADS_BIND": "0", "HF_HUB_OFFLINE": "1"},
    longest=900,
    unending={"min_tokens": 900},
)
LLAMACPP = Vendor(
    name="llamacpp",
    variable="ROCSTAR_LLAMACPP_PYTHON",
    form=EndpointFormat.SPELLED_IDS,
    command=_llamacpp,
    running=_running_llamacpp,
    env=ONE_THREAD,
    longest=400,
    unending={"ignore_eos": True},
)
VENDORS = (VLLM, SGLANG, LLAMACPP)
