"""Decoding steps on a GPU as captured graphs: one launch instead of a dozen per layer.

    step -> rows and context rounded up -> captured before? -> static inputs, replay -> logits of its rows
                                           no: capture; refused: the forward itself, from then on

Padding rows compute numbers that are not read. They write their key and value to the last token place of
their own slot, which the engine leaves unused (`SCRATCH_TOKENS`).

Shapes: R rows rounded up, N rows of the step, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rocstar.engine.inference.embedded.attention import Attention, Forward
from rocstar.engine.inference.embedded.kv import SlotKv, SlotPlan

LOG = logging.getLogger(__name__)
CONTEXT_STEP = 256
"""Tokens to which the context is rounded up."""
MAX_GRAPHS = 32
SCRATCH_TOKENS = 1
"""Token places of a slot that no row may use."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Replay]]
"""Run a computation once and return its result and what computes it again into the same memory. That holds no
reference to tensors from outside the computation: the caller keeps them. RuntimeError: the device refuses to
capture it."""


def cuda_capture() -> Capture:
    """Capture by CUDA graphs (HIP graphs on ROCm), which share one pool of memory.

    torch frees the pool with the last of its graphs and takes it for no other: then make a new capture.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()  # libraries allocate their workspaces, which they may not do in a capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # thread_local: a learner in another thread may allocate meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            out = run()
        return out, graph.replay

    return capture


def rounded_rows(num_rows: int) -> int:
    """The next power of two up to 8, then the next multiple of 8."""
    return 1 << (num_rows - 1).bit_length() if num_rows <= 8 else -(-num_rows // 8) * 8


@dataclass(frozen=True, slots=True)
class _Graph:
    """A replay reads and writes these tensors by address: each lives as long as the graph."""

    ids_R: Tensor
    positions_R: Tensor
    slots_R: Tensor
    logits_RV: Tensor
    replay: Replay


class GraphedDecode:
    """A `Forward` that replays steps without prompts over a `SlotKv`; anything else is `forward`'s.

    Graphs are dropped when the cache's tensors or the weights are others than at the capture. New values in
    the same tensors need nothing.
    """

    def __init__(
        self,
        forward: Forward,
        weights: Callable[[], list[int]],
        new_capture: Callable[[], Capture],
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        """`weights` gives the addresses of all weights now."""
        self._forward, self._weights, self._new_capture = forward, weights, new_capture
        self._capture = new_capture()
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[tuple[int, int], _Graph] = OrderedDict()
        """By rows and context, the last used at the end."""
        self._of: tuple[SlotKv, int, list[int]] | None = None
        self._is_refused = False

    def __call__(self, ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        if isinstance(attention, SlotPlan) and not attention.extras and num_logits and not self._is_refused:
            graph, scratch = self._graph(attention, num_logits), attention.kv.tokens_per_slot - SCRATCH_TOKENS
        else:
            graph = None
        if graph is None:
            return self._forward(ids_T, positions_T, attention, num_logits)
        graph.ids_R[:num_logits].copy_(ids_T)
        graph.positions_R[:num_logits].copy_(positions_T)
        graph.positions_R[num_logits:].fill_(scratch)
        graph.replay()
        return graph.logits_RV[:num_logits]

    def _graph(self, plan: SlotPlan, num_rows: int) -> _Graph | None:
        """The graph of the step; None if it cannot be one."""
        kv = plan.kv
        rows = min(rounded_rows(num_rows), kv.num_slots)
        context = min(-(-plan.context // CONTEXT_STEP) * CONTEXT_STEP, kv.tokens_per_slot)
        if plan.context > kv.tokens_per_slot - SCRATCH_TOKENS:
            return None
        now = (kv, kv.generation, self._weights())
        if now != self._of:
            self._graphs.clear()
            self._of, self._capture = now, self._new_capture()
        if (rows, context) in self._graphs:
            self._graphs.move_to_end((rows, context))
        elif (made := self._captured(kv, rows, context)) is None:
            return None
        else:
            self._graphs[rows, context] = made
            if len(self._graphs) > self._max_graphs:
                self._graphs.popitem(last=False)
        return self._graphs[rows, context]

    def _captured(self, kv: SlotKv, rows: int, context: int) -> _Graph | None:
        ids_R = torch.zeros(rows, dtype=torch.int64, device=kv.device)
        positions_R = torch.full_like(ids_R, kv.tokens_per_slot - SCRATCH_TOKENS)
        slots_R = torch.arange(rows, device=kv.device)

        def run() -> Tensor:
            plan = SlotPlan(kv, positions_R, context, range(rows), [])
            plan.slots_T = slots_R  # the host may copy nothing in a capture
            return self._forward(ids_R, positions_R, plan, rows)

        try:
            logits_RV, replay = self._capture(run)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._is_refused = True
            LOG.warning(f"the device refuses to capture a decoding step, which runs slower without: {error}")
            return None
        return _Graph(ids_R, positions_R, slots_R, logits_RV, replay)
