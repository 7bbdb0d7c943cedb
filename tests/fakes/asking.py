"""One turn of an engine, with defaults for what a test does not vary."""

from typing import Any

from rocstar.engine.inference.base import Generation, Inference, Sampling


async def ask(
    engine: Inference, ids: list[int], name: str = "s0/t/0", max_new_tokens: int = 8, **changes: Any
) -> Generation:
    arguments: dict[str, Any] = {
        "stop_ids": frozenset(),
        "sampling": Sampling(temperature=0.7),
        "seed": 1,
        "deadline": None,
        **changes,
    }
    return await engine.generate(ids, max_new_tokens=max_new_tokens, request_id=name, **arguments)
