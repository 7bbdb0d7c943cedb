"""The exchanges that a server is known by: recorded from the real one, played against the fake to compare.

    python -m tests.fakes.sglang.exchanges --python .venv-sglang/bin/python --out RECORDINGS

starts SGLang with the tiny model and a pool of CAPACITY tokens, plays, and writes one JSON file per exchange.
The last one kills the server. Nothing here depends on which tokens are drawn, or on how fast.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from rocstar.engine.inference.sglang.replica import SERVER_ENV, server_command
from rocstar.engine.inference.sglang.server import ServerProcess, free_port
from tests.fakes.sglang.fake_model import VOCAB, write_tiny_model

CAPACITY = 640
CPU_ARGS = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "dtype": "float32",
    "enable-metrics": True,
    "skip-server-warmup": True,
    "disable-overlap-schedule": True,
}
"""[engine.args] under which SGLang 0.5.23 was verified without a GPU."""
TIMEOUT_S = 120.0
LONG = 220
"""Tokens of a request that something happens to; two of them fit the pool."""
DROPPED = ("text", "decode_throughput", "e2e_latency")
"""Of a reply: text is noise, and what is timed says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its answer. status None = the connection was dropped; response: JSON or text."""

    name: str
    method: str
    path: str
    request: Any
    status: int | None
    response: Any


@dataclass(slots=True, kw_only=True)
class Player:
    """Plays against one server that was started with `models["a"]`; keeps every exchange that has a name."""

    url: str
    models: dict[str, Path]
    session: aiohttp.ClientSession
    exchanges: list[Exchange] = field(default_factory=list)

    async def call(self, name: str, path: str, body: Any = None, *, method: str = "POST") -> Any:
        """The response; recorded unless `name` is empty."""
        status, response = None, None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self.session.request(method, self.url + path, json=body) as reply:
                    status, text = reply.status, await reply.text()
            response = json.loads(text) if text.startswith(("{", "[")) else text
            if text.startswith("data: "):  # a stream: its payloads
                payloads = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
                response = [json.loads(one) if one.startswith("{") else one for one in payloads]
        except (aiohttp.ClientError, ConnectionError) as error:
            response = type(error).__name__
        if name:
            self.exchanges.append(
                Exchange(
                    name=name,
                    method=method,
                    path=path,
                    request=_clean(body, self.models),
                    status=status,
                    response=_clean(response, self.models),
                )
            )
        return response

    def start(self, name: str, path: str, body: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.call(name, path, body))

    async def until(self, done: Callable[[dict[str, Any]], bool]) -> None:
        """Until the first rank's load is as `done` says."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                loads = await self.call("", "/v1/loads?include=core", method="GET")
                if done(loads["loads"][0]):
                    return
                await asyncio.sleep(0.01)


def generate_body(ids: list[int], n: int, **more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": n, "temperature": 0.7, "ignore_eos": True, **more.pop("params", {})}
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True, **more}


def prompt(length: int, *, salt: int = 0) -> list[int]:
    """Ids that no other prompt here begins with."""
    return [3 + (k * k * 7 + k + salt * 101) % (VOCAB - 3) for k in range(length)]


async def play(url: str, models: dict[str, Path]) -> list[Exchange]:
    """`models`: a (served now), b (other weights), partial (of b, lm_head alone)."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        player = Player(url=url, models=models, session=session)
        for scene in (_requests, _refusals, _capacity, _aborts, _weights, _in_flight, _broadcast, _death):
            await scene(player)
        return player.exchanges


async def _requests(p: Player) -> None:
    first = await p.call("generate", "/generate", generate_body(prompt(5), 8, rid="first"))
    turn = [*prompt(5), *first["output_ids"], 11, 12, 13]
    await p.call("generate_second_turn", "/generate", generate_body(turn, 4))
    await p.call("generate_same_again", "/generate", generate_body(turn, 4))
    await p.call("generate_greedy", "/generate", generate_body(prompt(5), 4, params={"temperature": 0.0}))
    everything = {"ignore_eos": False, "stop_token_ids": list(range(VOCAB))}
    await p.call("generate_stop", "/generate", generate_body(prompt(6), 4, params=everything))
    await p.call("generate_top_logprobs", "/generate", generate_body(prompt(5), 1, top_logprobs_num=2))
    await p.call("", "/generate", generate_body([5, 6, 7], 1))
    await p.call("generate_stream", "/generate", generate_body([5, 6, 7], 6, stream=True))
    await p.call("loads", "/v1/loads?include=core", method="GET")
    await p.call("model_info", "/model_info", method="GET")
    await p.call("server_info", "/server_info", method="GET")
    await p.call("unknown_route", "/no_such_route", {})


async def _refusals(p: Player) -> None:
    await p.call("refuse_no_input", "/generate", {"sampling_params": {"max_new_tokens": 2}})
    await p.call("refuse_context", "/generate", generate_body(prompt(5000), 2))
    await p.call("refuse_total", "/generate", generate_body(prompt(600), 4000))
    await p.call("refuse_pool", "/generate", generate_body(prompt(CAPACITY + 52), 2))
    await p.call("", "/pause_generation", {"mode": "retract"})
    waiting = p.start("abort_lost_in_pause", "/generate", generate_body(prompt(9), 5, rid="twice"))
    await asyncio.sleep(0.5)
    await p.call("refuse_duplicate", "/generate", generate_body(prompt(9), 5, rid="twice"))
    await p.call("abort", "/abort_request", {"rid": "twice"})
    await p.call("abort_unknown", "/abort_request", {"rid": "nobody"})
    await p.call("continue", "/continue_generation", {})
    await waiting


async def _capacity(p: Player) -> None:
    clipped = generate_body(prompt(100, salt=1), 2500, rid="clip")
    await p.call("generate_clipped", "/generate", clipped)
    # The answer comes before the scheduler is idle, and until then a flush is refused.
    await p.until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)
    await p.call("flush", "/flush_cache", {})


async def _aborts(p: Player) -> None:
    bodies = [generate_body(prompt(20, salt=k), LONG, rid=f"ab/{k}") for k in (1, 12)]
    running = [p.start(f"abort_running_{k}", "/generate", body) for k, body in enumerate(bodies)]
    await p.until(lambda load: load["num_running_reqs"] == 2)
    await p.call("flush_while_running", "/flush_cache", {})
    await p.call("", "/abort_request", {"rid": "ab/1"})  # a prefix of the other's
    for task in running:
        await task
    bodies = [generate_body(prompt(20, salt=k), LONG, rid=f"rt/{k}") for k in (2, 5)]
    running = [p.start(f"abort_retracted_{k}", "/generate", body) for k, body in enumerate(bodies)]
    await p.until(lambda load: load["num_running_reqs"] == 2 and load["num_used_tokens"] > 200)
    await p.call("", "/pause_generation", {"mode": "retract"})
    await p.call("", "/abort_request", {"rid": "", "abort_all": True})
    for task in running:
        await task
    await p.call("", "/continue_generation", {})


async def _weights(p: Player) -> None:
    await p.call("checksums_a", "/weights_checker", {"action": "checksum"})
    await p.call("update_no_path", "/update_weights_from_disk", {})
    absent = {"model_path": str(p.models["a"]) + "-absent", "weight_version": "2"}
    await p.call("update_absent", "/update_weights_from_disk", absent)
    await p.call("update_partial", "/update_weights_from_disk", _update(p, "partial", "2"))
    await p.call("checksums_partial", "/weights_checker", {"action": "checksum"})
    await p.call("", "/update_weights_from_disk", _update(p, "a", "3"))
    label = {"new_version": "4", "abort_all_requests": False}
    await p.call("update_version", "/update_weight_version", label)
    await p.call("generate_labelled", "/generate", generate_body(prompt(7), 3))


async def _in_flight(p: Player) -> None:
    await p.call("", "/flush_cache", {})
    bodies = [generate_body(prompt(20, salt=k), LONG, rid=f"fl/{k}") for k in (3, 4)]
    running = [p.start(f"flight_generate_{k}", "/generate", body) for k, body in enumerate(bodies)]
    await p.until(lambda load: load["num_running_reqs"] == 2)
    await p.call("flight_pause", "/pause_generation", {"mode": "retract"})
    await p.call("flight_loads_1", "/v1/loads?include=core", method="GET")
    await asyncio.sleep(0.3)
    await p.call("flight_loads_2", "/v1/loads?include=core", method="GET")
    await p.call("flight_update", "/update_weights_from_disk", _update(p, "b", "5"))
    await p.call("checksums_b", "/weights_checker", {"action": "checksum"})
    await p.call("flight_continue", "/continue_generation", {})
    for task in running:
        await task


async def _broadcast(p: Player) -> None:
    empty = {"names": ["lm_head.weight"], "dtypes": ["float32"], "shapes": [[VOCAB, 64]], "group_name": "none"}
    await p.call("distributed_outside", "/update_weights_from_distributed", empty)
    await p.call("end_outside", "/end_weight_update", {})
    await p.call("begin", "/begin_weight_update", {})
    await p.call("begin_twice", "/begin_weight_update", {})
    await p.call("distributed_no_group", "/update_weights_from_distributed", empty)
    await p.call("end", "/end_weight_update", {})
    await p.call("destroy_unknown", "/destroy_weights_update_group", {"group_name": "none"})


async def _death(p: Player) -> None:
    await p.call("death_by_token", "/generate", generate_body([5, VOCAB + 100, 7], 2))


def _update(p: Player, model: str, version: str) -> dict[str, Any]:
    return {
        "model_path": str(p.models[model]),
        "weight_version": version,
        "flush_cache": True,
        "abort_all_requests": False,
    }


def _clean(value: Any, models: dict[str, Path]) -> Any:
    """Without what is timed, and with MODELS for the folder that the models lie in."""
    if isinstance(value, dict):
        return {
            k: _clean(v, models)
            for k, v in value.items()
            if k not in DROPPED and not k.endswith(("_time", "_ts", "_latency", "_wait"))
        }
    if isinstance(value, list):
        return [_clean(v, models) for v in value]
    if isinstance(value, str):
        return value.replace(str(models["a"].parent), "MODELS")
    return value


def write_models(folder: Path) -> dict[str, Path]:
    from safetensors.numpy import load_file, save_file

    models = {name: write_tiny_model(folder / name, seed=k) for k, name in enumerate("ab")}
    partial = models["partial"] = write_tiny_model(folder / "partial", seed=1)
    tensors = load_file(partial / "model.safetensors")
    kept = {"lm_head.weight": tensors["lm_head.weight"]}
    save_file(kept, partial / "model.safetensors", metadata={"format": "pt"})
    return models


def save(exchanges: list[Exchange], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.json"):
        old.unlink()
    for number, e in enumerate(exchanges):
        response = e.response
        if e.name == "server_info":  # several hundred settings, and paths of the machine
            kept = (
                "tp_size",
                "dp_size",
                "skip_tokenizer_init",
                "preferred_sampling_params",
                "version",
                "max_req_input_len",
            )
            response = {key: response[key] for key in (*kept, "enable_deterministic_inference")}
        record = {
            "name": e.name,
            "server": "sglang 0.5.23, --device cpu",
            "request": {"method": e.method, "path": e.path, "json": e.request},
            "status": e.status,
            "response": response,
        }
        text = json.dumps(record, ensure_ascii=False)
        (out / f"{number:02}_{e.name}.json").write_text(text + "\n", encoding="utf-8")


async def record(command: Callable[[Path, int], list[str]], out: Path, log_path: Path) -> None:
    from rocstar.engine.inference.sglang.api import Api

    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder))
        port = free_port()
        async with ServerProcess(command(models["a"], port), log_path=log_path, env=SERVER_ENV) as server:
            url = f"http://127.0.0.1:{port}"
            async with Api(url) as api:
                await server.wait_ready(api.answers, deadline_s=600, progress=print)
            save(await play(url, models), out)


def _main() -> Coroutine[Any, Any, None]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, required=True, help="the interpreter that has SGLang")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path, default=Path("runs/sglang-record.log"))
    args = parser.parse_args()
    more = {**CPU_ARGS, "max-total-tokens": CAPACITY}
    return record(lambda model, port: server_command(args.python.absolute(), model, port, more), args.out, args.log)


if __name__ == "__main__":
    asyncio.run(_main())
