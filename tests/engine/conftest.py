"""Tiny models, the counting model, and ways to wait without sleeping.

torch and transformers are imported by the tests that need them: most of the engine does without.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ..patience import PATIENCE_S

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

VOCAB = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


@pytest.fixture
def _one_torch_thread() -> Iterator[None]:
    """Tiny matrices: more threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model(architecture: str, *, seed: int = 0) -> PreTrainedModel:
    """A random model whose predictions depend on all of its context; equal arguments give equal weights."""
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    config: Any
    cls: Any
    config, cls = {
        "qwen2": (Qwen2Config(**SIZES, tie_word_embeddings=True), Qwen2ForCausalLM),
        "qwen3": (Qwen3Config(**SIZES), Qwen3ForCausalLM),
        "llama": (LlamaConfig(**SIZES), LlamaForCausalLM),
    }[architecture]
    model = cls._from_config(config, attn_implementation="sdpa").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim < 2 else 0.0, 0.25, generator=generator)
    return model


def counting_model(*, max_length: int = 1 << 20) -> Any:
    """Behind token n it says n + 1, with all its mass. It brings what EmbeddedEngine asks of a model."""
    import torch

    class CountingModel(torch.nn.Module):
        config = SimpleNamespace(
            vocab_size=VOCAB,
            max_position_embeddings=max_length,
            num_hidden_layers=1,
            num_key_value_heads=1,
            num_attention_heads=1,
            hidden_size=4,
        )

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def set_attn_implementation(self, name: str) -> None:
            pass

        def forward(self, input_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> SimpleNamespace:
            after = (input_ids[0, logits_to_keep] + 1) % VOCAB
            return SimpleNamespace(logits=100.0 * torch.nn.functional.one_hot(after, VOCAB)[None].float())

    return CountingModel()


class Gate:
    """Holds the device thread before its `stop_at`-th forward until `open` is set."""

    def __init__(self, model: Any, stop_at: int) -> None:
        self.reached, self.open = asyncio.Event(), threading.Event()
        self._loop, self._left = asyncio.get_running_loop(), stop_at
        self._handle = model.register_forward_pre_hook(self._before)

    def _before(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self.open.wait(timeout=PATIENCE_S)


@pytest.fixture
def gate() -> type[Gate]:
    return Gate


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def models(_one_torch_thread: None) -> Callable[..., PreTrainedModel]:
    return tiny_model


@pytest.fixture
def counting(_one_torch_thread: None) -> Callable[..., Any]:
    return counting_model


@pytest.fixture
def embedded(thread: ThreadPoolExecutor) -> Callable[..., Any]:
    """`async with embedded(model, max_running=4) as engine:`"""

    @asynccontextmanager
    async def start(model: Any, cls: Any = None, **options: Any) -> AsyncIterator[Any]:
        from rocstar.engine.inference.embedded.embedded import EmbeddedEngine

        async with (cls or EmbeddedEngine)(model, thread=thread, **options) as engine:
            yield engine

    return start


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Any]:
    """Let others run until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        for _ in range(2_000_000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("the condition never held")

    return wait
