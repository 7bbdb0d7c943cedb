"""Weights from this process into servers' memory over torch.distributed (gloo, nccl, rccl).

    we are rank 0 ─┬─ server 0: its tensor-parallel ranks 1 .. tp
                   └─ server 1: the next ranks

Joining waits for every server to join, a bucket for every server to load it. Both are collective: if a server
dies in one, the others wait until the group's timeout. A failed group is
never used again; the next publish makes a new one under a new name.
Only gloo was ever run; nccl and rccl are written to the same calls.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.server import free_port
from rocstar.engine.inference.weight_stream import Bucket, WeightStream, in_buckets
from rocstar.engine.inference.weights import LiveWeights

if TYPE_CHECKING:
    from torch import Tensor

    from rocstar.engine.inference.sglang.engine import SGLangEngine

_NUMBERS = itertools.count()
HOST = "127.0.0.1"


async def buckets(source: LiveWeights | WeightStream, bucket_bytes: int) -> AsyncIterator[Bucket]:
    """The source's tensors in order, together at most `bucket_bytes`, a larger one alone; those of a stream
    as they come."""
    if isinstance(source, WeightStream):
        async for bucket in source:
            yield bucket
            del bucket  # while the next is waited for
        return
    for names in in_buckets(source.sizes(), bucket_bytes):
        yield [(name, source.tensor(name)) for name in names]


class BroadcastGroup:
    """One process group of servers on this machine, with us as rank 0.

    InferenceError(broadcast_failed) if a server does not join, or a bucket does not arrive.
    """

    def __init__(self, engines: Sequence[SGLangEngine], *, backend: str, timeout_s: float) -> None:
        self.engines = list(engines)
        self._urls = [engine.api.url for engine in engines]
        self._backend, self._timeout_s = backend, timeout_s
        self._name = f"rocstar-{os.getpid()}-{next(_NUMBERS)}"
        self._world_size = 1 + sum(engine.facts.tp_size for engine in engines)
        self._group: Any = None

    def has_members(self, engines: Sequence[SGLangEngine]) -> bool:
        """Return True if exactly these servers joined. One that was started again, at another address, is in
        no group."""
        return self.engines == list(engines) and self._urls == [engine.api.url for engine in engines]

    async def __aenter__(self) -> BroadcastGroup:
        port = free_port()
        rank = 1
        posts = []
        for engine in self.engines:
            body = {
                "master_address": HOST,
                "master_port": port,
                "rank_offset": rank,
                "world_size": self._world_size,
                "group_name": self._name,
                "backend": self._backend,
            }
            posts.append((engine, "/init_weights_update_group", body))
            rank += engine.facts.tp_size
        self._group = await self._together(posts, self._join, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        posts = [
            engine.api.post("/destroy_weights_update_group", {"group_name": self._name})
            for engine in self.engines
            if engine.broken is None
        ]
        await asyncio.gather(*posts, return_exceptions=True)
        await asyncio.to_thread(_destroy, group)

    async def send(self, bucket: Bucket, *, version: int) -> None:
        """Every server loads the bucket; each must be inside begin_weight_update .. end_weight_update."""
        body = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self._name,
            "flush_cache": True,
            "abort_all_requests": False,
            "weight_version": str(version),
        }
        posts = [(engine, "/update_weights_from_distributed", body) for engine in self.engines]
        await self._together(posts, self._broadcast, bucket)

    async def _together(
        self, posts: Sequence[tuple[SGLangEngine, str, Mapping[str, Any]]], work: Any, *args: Any
    ) -> Any:
        """Our part of a collective and the servers' at once. Ours runs in a thread: torch blocks in it."""
        calls = [engine.api.post(path, dict(body), timeout_s=2 * self._timeout_s) for engine, path, body in posts]
        ours, *theirs = await asyncio.gather(asyncio.to_thread(work, *args), *calls, return_exceptions=True)
        for outcome in (*theirs, ours):
            if isinstance(outcome, InferenceError | RuntimeError | ValueError | OSError):
                raise InferenceError("broadcast_failed", str(outcome), retryable=True) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        return ours

    # ---- in a thread ----

    def _join(self, port: int) -> Any:
        import torch.distributed
        from torch.distributed import distributed_c10d as c10d

        dist: Any = torch.distributed
        timeout = timedelta(seconds=self._timeout_s)
        store = dist.TCPStore(HOST, port, self._world_size, is_master=True, timeout=timeout)
        # The server makes its side with the same private function: a group beside the learner's default one
        # cannot be made with the public functions, which want every member to know that default group.
        group, _ = c10d._new_process_group_helper(
            self._world_size,
            0,
            [],
            dist.Backend(self._backend),
            dist.PrefixStore(self._name, store),
            group_name=c10d.GroupName(self._name),
            timeout=timeout,
        )
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(self._world_size)}
        return group

    def _broadcast(self, bucket: Bucket) -> None:
        """Returns when the tensors have been sent: their memory may be used again."""
        import torch

        if self._backend != "nccl":
            self._send_all([tensor.detach().cpu().contiguous() for _, tensor in bucket])
            return
        # Use a separate CUDA stream, so that the learner's gathers do not queue behind the broadcast.
        cuda: Any = torch.cuda  # torch has no types for its streams
        stream = cuda.Stream()
        stream.wait_stream(cuda.default_stream())
        with cuda.stream(stream):
            self._send_all([tensor.detach().contiguous() for _, tensor in bucket])
        stream.synchronize()

    def _send_all(self, tensors: Sequence[Tensor]) -> None:
        import torch.distributed as dist

        works = [dist.broadcast(tensor, src=0, group=self._group, async_op=True) for tensor in tensors]
        for work in works:
            assert work is not None
            work.wait()


def _destroy(group: Any) -> None:
    import torch.distributed as dist

    dist.destroy_process_group(group)
