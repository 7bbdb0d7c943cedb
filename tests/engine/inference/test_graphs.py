"""Captured decoding steps, with a capture that records the computation: padding, invalidation, bounds.

What is not tested without a GPU is the capture of torch alone.
"""

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from rocstar.engine.inference.embedded import attention, native
from rocstar.engine.inference.embedded import decoder as decoder_module
from rocstar.engine.inference.embedded import kv as kv_module
from rocstar.engine.inference.embedded.decoder import _Decoder
from rocstar.engine.inference.embedded.graphs import GraphedDecode, rounded_rows
from rocstar.engine.inference.embedded.kv import Extra
from tests.fakes.asking import ask

from .test_native import cache_of

pytestmark = pytest.mark.usefixtures("_one_torch_thread")


@dataclass(frozen=True)
class Made:
    """The tensor at `place` of what an operation returned."""

    operation: int
    place: int


class Operations(TorchDispatchMode):
    """Records operations on tensors, and runs them again in the same memory.

    As a graph of a GPU it owns the results, and no tensor that was made outside.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any]] = []
        """Operation, arguments, and its result if that has memory of its own."""
        self._seen: list[tuple[Tensor, Made]] = []
        """Results while it records."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = tree_map_only(Tensor, self._reference, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        given = [x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        results = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        is_new = not any(x.untyped_storage().data_ptr() in given for x in results)
        self._seen += [(x, Made(len(self._calls), place)) for place, x in enumerate(results)]
        self._calls.append((func, arguments, results if is_new else None))
        return result

    def _reference(self, tensor: Tensor) -> Any:
        return next((made for one, made in self._seen if one is tensor), None) or weakref.ref(tensor)

    def close(self) -> None:
        self._seen.clear()

    def run(self) -> None:
        made: list[list[Tensor]] = []

        def tensor_of(reference: Any) -> Any:
            if isinstance(reference, Made):
                return made[reference.operation][reference.place]
            if not isinstance(reference, weakref.ref):
                return reference
            tensor = reference()
            assert tensor is not None, "a graph reads memory that was freed after the capture"
            return tensor

        for func, arguments, own in self._calls:
            args, kwargs = tree_map(tensor_of, arguments)
            found = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for old, new in zip(own or [], found, strict=False):
                old.copy_(new)
            made.append(found if own is None else own)


class Recorded:
    """Captures that compute again in the same memory, as graphs do.

    As that of torch a capture is of no use when it has graphs no longer.
    """

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self.refuses = False

    def new(self) -> Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]:
        graphs: list[weakref.ref[Any]] = []

        def capture(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
            assert not graphs or any(graph() is not None for graph in graphs), "the pool was freed"
            out, replay = self._capture(run)
            graphs.append(weakref.ref(replay))
            return out, replay

        return capture

    def _capture(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captured += 1
        operations = Operations()
        with operations:
            out = run()
        operations.close()

        def replay() -> None:
            self.replayed += 1
            operations.run()

        return out, replay


class Both:
    """The same steps over two caches: by graphs, and by the forward itself."""

    def __init__(self, model: Any, **options: Any) -> None:
        attention.install(model)
        self.capture, decoder = Recorded(), _Decoder(model)
        self.graphed = GraphedDecode(decoder, native.addresses_of(model), self.capture.new, **options)
        self.plain = decoder
        self.scratch: set[int] = set()
        """Token places that padding may have written to."""
        self.caches = cache_of(model, native=False), cache_of(model, native=False)

    def reserve(self, slots: int, tokens: int) -> None:
        for kv in self.caches:
            kv.reserve(slots, tokens)

    def step(self, positions: list[int], *extras: Extra) -> None:
        """Rows that differ in every token; logits and whatever rows hold have to be the same."""
        got = []
        for kv, forward in zip(self.caches, (self.graphed, self.plain), strict=True):
            positions_T, plan = kv.plan(positions, extras)
            slots = [*range(len(positions)), *(e.slot for e in extras for _ in range(e.start, e.end))]
            ids_T = (torch.tensor(slots) * 31 + positions_T * 7) % 300
            got.append(forward(ids_T, positions_T, plan, len(positions)).clone())
        torch.testing.assert_close(got[0], got[1], atol=1e-5, rtol=1e-5)
        self.scratch.add(self.caches[0].tokens_per_slot - 1)
        kept = [p for p in range(self.caches[0].tokens_per_slot) if p not in self.scratch]
        for mine, own in zip(*([*kv._k, *kv._v] for kv in self.caches), strict=True):
            torch.testing.assert_close(mine[:, :, kept], own[:, :, kept], atol=1e-5, rtol=1e-5)

    def prompt(self, length: int, slots: int) -> None:
        self.step([length] * slots, *(Extra(slot=s, start=0, end=length) for s in range(slots)))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_the_forward_and_rows_of_others_stay(dtype: torch.dtype, models: Any) -> None:
    """Six rows have prompts; five, three and six decode beside idle ones, which padding must not touch."""
    both = Both(models("qwen3").to(dtype))
    both.reserve(8, 64)
    both.prompt(9, 6)
    assert both.capture.captured == 0, "a step with prompts is the forward's"
    for k in range(5):
        both.step([10 + k, 10, 12, 10 + k, 11])
    assert (both.capture.captured, both.capture.replayed) == (1, 5), "five rows are eight, in 64 tokens"
    both.step([15, 11, 13])
    both.step([16, 12, 14, 15, 12, 10])
    assert (both.capture.captured, both.capture.replayed) == (2, 7), "four rows, then eight again"


@torch.inference_mode()
def test_rows_and_context_are_rounded_up_and_graphs_are_few(models: Any) -> None:
    assert [rounded_rows(n) for n in (1, 2, 3, 5, 8, 9, 16, 17)] == [1, 2, 4, 8, 8, 16, 16, 24]
    both = Both(models("llama"), max_graphs=2)
    both.reserve(3, 400)
    both.prompt(9, 3)
    for positions, captured in [
        ([10, 10, 10], 1),  # (3, 256): no more rows than slots
        ([255], 2),  # (1, 256)
        ([254, 11, 11], 2),
        ([256], 3),  # (1, 400): no more context than tokens; (1, 256) was used least recently
        ([12, 12, 12], 3),
        ([13], 4),
    ]:
        both.step(positions)
        assert both.capture.captured == captured and len(both.graphed._graphs) <= 2


@torch.inference_mode()
def test_graphs_end_with_the_tensors_that_they_read(models: Any) -> None:
    model = models("qwen2")
    both = Both(model)
    both.reserve(2, 64)
    both.prompt(5, 2)
    both.step([6, 6])
    model.model.norm.weight.mul_(2)  # in the same place
    both.step([7, 7])
    assert both.capture.captured == 1
    layer = model.model.layers[1]
    layer.mlp.up_proj.weight = nn.Parameter(layer.mlp.up_proj.weight * 2)
    both.step([8, 8])
    assert both.capture.captured == 2
    both.reserve(2, 65)
    both.step([9, 9])
    assert both.capture.captured == 3
    for kv in both.caches:
        kv.give_back()
    both.reserve(2, 64)
    both.prompt(5, 2)
    both.step([6, 6])
    assert both.capture.captured == 4


@torch.inference_mode()
def test_last_token_place_and_a_refused_capture_are_the_forwards(models: Any, caplog: Any) -> None:
    both = Both(models("llama"))
    both.reserve(2, 64)
    both.prompt(5, 2)
    both.step([63, 6])
    assert both.capture.captured == 0, "the last place is for padding"
    both.capture.refuses = True
    both.step([7, 7])
    both.capture.refuses = False
    both.step([8, 8])
    assert both.capture.captured == 0 and len(caplog.records) == 1
    assert "not permitted when stream is capturing" in caplog.text


async def test_engine_decodes_by_graphs(embedded: Any, models: Any, monkeypatch: Any) -> None:
    """Rows of one engine come and end beside each other, grow the cache, and say what they say without."""
    monkeypatch.setattr(kv_module, "_decode", None)
    monkeypatch.setattr(decoder_module.native, "MOST_BYTES", 0)

    async def told(*, graphs: bool) -> list[Any]:
        model, capture = models("qwen3"), Recorded()
        async with embedded(model, max_running=5) as engine:
            if graphs:
                engine._forward = GraphedDecode(_Decoder(model), native.addresses_of(model), capture.new)
            lengths = (3, 70, 20, 9, 40, 5, 30)
            turns = await asyncio.gather(*(one(engine, k, n) for k, n in enumerate(lengths)))
        assert not graphs or capture.replayed > 60 > 20 > capture.captured
        return [got.ids for got in turns]

    async def one(engine: Any, k: int, length: int) -> Any:
        got = await ask(engine, list(range(30, 60 + k)), str(k), length)
        engine.release(str(k))
        return got

    assert await told(graphs=True) == await told(graphs=False)
