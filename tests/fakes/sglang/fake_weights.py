"""What a stand-in SGLang server does with weights: hold them, take new ones, say their checksums.

As the real one it answers 200 to a partial checkpoint and to unknown names, and dies of a wrong shape.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from rocstar.engine.inference.sglang.checksums import FUSED, TIED, expected_checksums
from rocstar.engine.inference.weights import DiskWeights, LiveWeights, WeightSource
from tests.fakes.sglang.fake import FakeScheduler

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, kw_only=True)
class Faults:
    """What goes wrong.

    hang: the scheduler stands still; mute: no answer to anything; error_500: so many /generate fail;
    garbage: an update spoils a tensor and says 200; forget: an update changes nothing and says 200;
    raw_logprobs: as SGLANG_RETURN_ORIGINAL_LOGPROB; refuse_broadcast: its group cannot be joined;
    other_hash: checksums that nobody can foretell, as a GPU's; end_stream: a streamed answer ends in the
    middle, after so many events; in_bytes: it comes byte by byte.
    """

    hang: bool = False
    mute: bool = False
    error_500: int = 0
    garbage: bool = False
    forget: bool = False
    raw_logprobs: bool = False
    refuse_broadcast: bool = False
    other_hash: bool = False
    end_stream: int | None = None
    in_bytes: bool = False


class FakeWeights:
    """The weight routes. `die` ends the server as the real one ends."""

    def __init__(
        self, model: Path, scheduler: FakeScheduler, faults: Faults, die: Callable[[], None], dead: asyncio.Event
    ) -> None:
        self._scheduler, self._faults, self._die, self._dead = scheduler, faults, die, dead
        self._tensors: dict[str, Tensor] = {}
        self._checksums: dict[str, str] = {}
        self._session_open = False
        self._groups: dict[str, Any] = {}
        self._load(DiskWeights(model))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/update_weights_from_disk", self._update_disk),
            web.post("/update_weight_version", self._update_version),
            web.post("/weights_checker", self._checker),
            web.post("/init_weights_update_group", self._init_group),
            web.post("/destroy_weights_update_group", self._destroy_group),
            web.post("/begin_weight_update", self._begin),
            web.post("/update_weights_from_distributed", self._update_distributed),
            web.post("/end_weight_update", self._end),
        ]

    def _load(self, source: WeightSource) -> None:
        """Tensors that it knows replace its own, without a word about the others."""
        names = [name for name in source.shapes() if not self._tensors or name in self._tensors]
        for name in names:
            self._tensors[name] = source.tensor(name).clone()
        if self._faults.garbage:
            self._tensors[names[-1]] = self._tensors[names[-1]] + 1.0
        served = LiveWeights(self._tensors)
        found = expected_checksums(served, _fused(self._tensors), "float32")
        assert found is not None
        self._checksums = found
        self._scheduler.take_weights(self._tensors)
        self._scheduler.weights_key = hashlib.sha256(json.dumps(found).encode()).digest()[:32]

    async def _update_disk(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "model_path" not in body:
            return web.json_response({"object": "error", "message": "1 validation errors"}, status=400)
        await self._drained()
        source = DiskWeights(body["model_path"])
        try:
            shapes = source.shapes()
        except ValueError:
            failure = {
                "success": False,
                "message": f"Failed to get weights iterator: {body['model_path']}",
                "num_paused_requests": 0,
            }
            return web.json_response(failure, status=400)
        if any(n in shapes and shapes[n] != tuple(t.shape) for n, t in self._tensors.items()):
            self._die()
            await self._dead.wait()
            return web.Response(status=500)
        if not self._faults.forget:
            self._load(source)
        return self._updated(body, "Succeeded to update model weights.", {"num_paused_requests": 0})

    def _updated(self, body: dict[str, Any], message: str, extra: dict[str, Any]) -> web.Response:
        if body.get("flush_cache", True):
            self._scheduler.kv.flush()
        if body.get("weight_version") is not None:
            self._scheduler.label = body["weight_version"]
            message += f" Weight version updated to {body['weight_version']}."
        return web.json_response({"success": True, "message": message, **extra})

    async def _drained(self) -> None:
        """Without a pause an update waits for everything in flight."""
        while not self._scheduler.paused and not self._scheduler.idle:  # noqa: ASYNC110 - a pure scheduler
            await asyncio.sleep(0.005)

    async def _update_version(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("abort_all_requests", True):
            self._scheduler.abort("", everything=True)
        self._scheduler.label = body["new_version"]
        message = f"Weight version updated to {body['new_version']}"
        reply = {"success": True, "message": message, "new_version": body["new_version"]}
        return web.json_response(reply)

    async def _checker(self, request: web.Request) -> web.Response:
        told = {name: f"gpu-{v}" for name, v in self._checksums.items()}
        rank = {"checksums": told if self._faults.other_hash else self._checksums}
        return web.json_response({"success": True, "message": "Success.", "ranks": [rank]})

    async def _init_group(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["group_name"]
        if self._faults.refuse_broadcast:
            return _failed("Failed to initialize custom process group: refused.")
        self._groups[name] = await asyncio.to_thread(_join, body)
        reply = {"success": True, "message": "Succeeded to initialize custom process group."}
        return web.json_response(reply)

    async def _destroy_group(self, request: web.Request) -> web.Response:
        group = self._groups.pop((await request.json())["group_name"], None)
        if group is None:
            return _failed("The group to be destroyed does not exist.")
        reply = {"success": True, "message": "Succeeded to destroy custom process group."}
        return web.json_response(reply)

    async def _begin(self, request: web.Request) -> web.Response:
        await self._drained()
        if self._session_open:
            return _failed("a weight-update session is already open; call end_weight_update() first")
        self._session_open = True
        return web.json_response({"success": True, "message": "Success"})

    async def _end(self, request: web.Request) -> web.Response:
        if not self._session_open:
            return _failed("no weight-update session is open; call begin_weight_update() first")
        self._session_open = False
        return web.json_response({"success": True, "message": "Success"})

    async def _update_distributed(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not self._session_open:
            message = "must run between begin_weight_update() and end_weight_update()"
            return _failed(f"update_weights_from_distributed {message}")
        if body.get("group_name", "weight_update_group") not in self._groups:
            message = f"Group {body.get('group_name')} not in {list(self._groups)}."
            return _failed(f"Failed to receive weights: {message}")
        tensors = await asyncio.to_thread(_receive, self._groups[body["group_name"]], body)
        if not self._faults.forget:
            self._load(LiveWeights(tensors))
        return self._updated(body, "Succeeded to update parameter online.", {})


def _failed(message: str) -> web.Response:
    return web.json_response({"success": False, "message": message}, status=400)


def _fused(names: dict[str, Tensor]) -> list[str]:
    """The server's parameter names for those of the Hugging Face model."""
    found = []
    for name in names:
        for fused, parts in FUSED.items():
            for part in parts:
                name = name.replace(part, fused)
        if name not in found and not (name == TIED and "model.embed_tokens.weight" not in names):
            found.append(name)
    return found


def _join(body: dict[str, Any]) -> Any:
    from datetime import timedelta

    import torch.distributed
    from torch.distributed import distributed_c10d as c10d

    dist: Any = torch.distributed
    timeout = timedelta(seconds=20)
    world = body["world_size"]
    store = dist.TCPStore(body["master_address"], body["master_port"], world, False, timeout)
    name = body["group_name"]
    group, _ = c10d._new_process_group_helper(
        world,
        body["rank_offset"],
        [],
        dist.Backend(body["backend"]),
        dist.PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world)}
    return group


def _receive(group: Any, body: dict[str, Any]) -> dict[str, Tensor]:
    import torch
    import torch.distributed as dist

    found = {}
    for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        dist.broadcast(found[name], src=0, group=group)
    return found
