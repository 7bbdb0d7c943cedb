"""No id outside the vocabulary is ever sent: one kills a server."""

from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.engine import SGLangEngine
from tests.fakes.sglang.fake_model import VOCAB, write_tiny_model
from tests.fakes.sglang.fake_server import FakeServer

BAD = [VOCAB, -1, -VOCAB, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, -(1 << 32) + 5, 1 << 64, -(1 << 64)]
"""Some are a good id in 32 bits."""


async def test_one_bad_id_anywhere_is_refused_before_anything_is_sent(tmp_path: Path, ask: Any) -> None:
    model = write_tiny_model(tmp_path / "model", seed=0)
    async with FakeServer(model) as server, SGLangEngine(server.url, vocab_size=VOCAB) as engine:
        before = server.requests
        for bad in BAD:
            for at in (0, 50, 99):
                ids = [5] * 100
                ids[at] = bad
                with pytest.raises(InferenceError, match="bad_token"):
                    await ask(engine, ids, "s0/t/0", 2)
        assert server.requests == before
        assert len((await ask(engine, [0, VOCAB - 1], "s0/t/0", 2)).ids) == 2
