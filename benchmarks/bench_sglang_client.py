"""What a turn over HTTP costs this process: SGLangEngine against the fake server in another process.

    python benchmarks/bench_sglang_client.py --out benchmarks/results/sglang_client.json

CPU microseconds of this process per turn, the least of `--repeat` runs each, for several prompt lengths:

    client   SGLangEngine.generate: checks, body, HTTP, the reply checked and taken apart
    bare     an aiohttp POST of the same bodies, its reply parsed
    json     the body's encoding and the reply's parsing alone, without HTTP

"extra" = client - bare: what our own code adds to the least that a turn over aiohttp can cost. The fake's own
time is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1]))

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.sglang.api import Api
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.requests import generate_body
from rocstar.engine.inference.sglang.server import ServerProcess, free_port
from tests.fakes.sglang.fake_model import VOCAB, write_tiny_model

ROOT = Path(__file__).parents[1]
FAKE = "tests.fakes.sglang.fake_server"


async def client_turns(url: str, length: int, args: argparse.Namespace) -> None:
    async with SGLangEngine(url, vocab_size=VOCAB) as engine:

        async def one(k: int) -> None:
            await engine.generate(
                prompt(k, length),
                max_new_tokens=args.new,
                stop_ids=frozenset(),
                sampling=Sampling(temperature=0.7),
                seed=k,
                request_id=f"s0/t/{k}",
                deadline=asyncio.get_running_loop().time() + 600,
            )

        await at_once(one, args)


async def bare_posts(url: str, length: int, args: argparse.Namespace) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=args.concurrency)) as session:

        async def one(k: int) -> None:
            async with session.post(url + "/generate", json=body(k, length, args)) as response:
                json.loads(await response.read())

        await at_once(one, args)


async def json_alone(url: str, length: int, args: argparse.Namespace) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.post(url + "/generate", json=body(0, length, args)) as response:
            reply = await response.read()
    started = time.process_time()
    for k in range(args.turns):
        json.dumps(body(k, length, args)).encode()
        json.loads(reply)
    args.json_s = time.process_time() - started


async def at_once(one: Any, args: argparse.Namespace) -> None:
    room = asyncio.Semaphore(args.concurrency)

    async def bounded(k: int) -> None:
        async with room:
            await one(k)

    await asyncio.gather(*(bounded(k) for k in range(args.turns)))


def body(k: int, length: int, args: argparse.Namespace) -> dict[str, Any]:
    return generate_body(prompt(k, length), args.new, frozenset(), 0.7, f"bare/{k}")


@lru_cache(maxsize=1 << 14)
def cached_prompt(k: int, length: int) -> tuple[int, ...]:
    return tuple(1 + (k * 31 + j * 7) % (VOCAB - 1) for j in range(length))


def prompt(k: int, length: int) -> list[int]:
    return list(cached_prompt(k, length))


async def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model", seed=0)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(
            json.dumps({**config, "eos_token_id": None, "max_position_embeddings": 1 << 17})
        )
        port = free_port()
        command = [sys.executable, "-m", FAKE, "--model-path", str(model), "--port", str(port)]
        command += ["--max-total-tokens", str(1 << 22)]
        os.environ["PYTHONPATH"] = str(ROOT)
        async with ServerProcess(command, log_path=Path(folder) / "log") as server:
            url = f"http://127.0.0.1:{port}"
            async with Api(url) as api:
                await server.wait_ready(api.answers, deadline_s=60)
            return [await measure_length(url, length, args) for length in args.prompt]


async def measure_length(url: str, length: int, args: argparse.Namespace) -> dict[str, float]:
    """The three kinds in turn, `repeat` times: what changes on the machine meanwhile meets all of them."""
    for k in range(args.turns):
        cached_prompt(k, length)
    found: dict[str, list[float]] = {"client": [], "bare": [], "json": []}
    for _ in range(args.repeat):
        for name, work in (("bare", bare_posts), ("client", client_turns), ("json", json_alone)):
            started = time.process_time()
            await work(url, length, args)
            took = args.json_s if name == "json" else time.process_time() - started
            found[name].append(took / args.turns * 1e6)
    least = {f"{name}_us": round(min(values), 1) for name, values in found.items()}
    extra = round(least["client_us"] - least["bare_us"], 1)
    return {"prompt": length, "new": args.new, **least, "extra_us": extra}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--prompt", type=int, nargs="+", default=[256, 2048, 8192])
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = asyncio.run(measure(args))
    for row in rows:
        print(json.dumps(row))
    if args.out is not None:
        result = {
            "command": " ".join(["python", "benchmarks/bench_sglang_client.py", *sys.argv[1:]]),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"aiohttp {aiohttp.__version__}",
            "turns": args.turns,
            "concurrency": args.concurrency,
            "repeat": args.repeat,
            "cpu_us_per_turn": rows,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
