"""What a turn over HTTP costs this process: SGLangEngine against the fake server in another process.

    python benchmarks/bench_sglang_client.py [--turns 200] [--concurrency 256] [--prompt 2048] [--new 64]

CPU seconds of this process per turn, beside those of a bare aiohttp POST of the same bytes; the fake's own
time is not in it. One core for each of the two processes is enough.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.server import ServerProcess, free_port
from rocstar.engine.inference.sglang.api import Api
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.fake_model import VOCAB, write_tiny_model
from rocstar.engine.inference.sglang.requests import generate_body

FAKE = "rocstar.engine.inference.sglang.fake_server"


async def client_turns(url: str, args: argparse.Namespace) -> None:
    async with SGLangEngine(url, vocab_size=VOCAB) as engine:

        async def one(k: int) -> None:
            await engine.generate(
                prompt(k, args.prompt),
                max_new_tokens=args.new,
                stop_ids=frozenset(),
                sampling=Sampling(temperature=0.7),
                seed=k,
                request_id=f"s0/t/{k}",
                deadline=asyncio.get_running_loop().time() + 600,
            )

        await at_once(one, args)


async def bare_posts(url: str, args: argparse.Namespace) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=args.concurrency)) as session:

        async def one(k: int) -> None:
            body = generate_body(prompt(k, args.prompt), args.new, frozenset(), 0.7, f"bare/{k}")
            async with session.post(url + "/generate", json=body) as response:
                json.loads(await response.read())

        await at_once(one, args)


async def at_once(one: Any, args: argparse.Namespace) -> None:
    room = asyncio.Semaphore(args.concurrency)

    async def bounded(k: int) -> None:
        async with room:
            await one(k)

    await asyncio.gather(*(bounded(k) for k in range(args.turns)))


def prompt(k: int, length: int) -> list[int]:
    return [1 + (k * 31 + j * 7) % (VOCAB - 1) for j in range(length)]


async def measure(args: argparse.Namespace) -> dict[str, float]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model", seed=0)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(
            json.dumps({**config, "eos_token_id": None, "max_position_embeddings": 1 << 17})
        )
        port = free_port()
        command = [sys.executable, "-m", FAKE, "--model-path", str(model), "--port", str(port)]
        command += ["--max-total-tokens", str(1 << 22)]
        async with ServerProcess(command, log_path=Path(folder) / "log") as server:
            url = f"http://127.0.0.1:{port}"
            async with Api(url) as api:
                await server.wait_ready(api.answers, deadline_s=60)
            for name, work in (("bare", bare_posts), ("client", client_turns)):
                runs = []
                for _ in range(args.repeat):
                    started = time.process_time()
                    await work(url, args)
                    runs.append((time.process_time() - started) / args.turns * 1e6)
                found[f"{name}_us_per_turn"] = round(min(runs), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(json.dumps({**vars(args), **asyncio.run(measure(args))}))


if __name__ == "__main__":
    main()
