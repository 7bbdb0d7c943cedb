"""Long work in small pieces lets others have the loop; what is put together of pieces is the whole text."""

import asyncio
import json

import pytest

from rocstar.sandbox.http.bodies import LoopYielder
from rocstar.sandbox.http.responses import LARGE_BYTES, fill_list, to_json
from rocstar.sandbox.service.dialects.native import Outcomes


async def test_others_have_a_turn_once_the_time_of_a_piece_is_over() -> None:
    now_s = 0.0
    yielder = LoopYielder(1.0, clock=lambda: now_s)
    others: list[float] = []

    async def other() -> None:
        while True:
            others.append(now_s)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    for _ in range(12):
        now_s += 0.25
        await yielder.pause()
    beside.cancel()
    assert others == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("items", [[], ["a"], ["a", 2], [{"x": [1, "\u00e4"]}, None, "z" * LARGE_BYTES]])
async def test_a_list_of_texts_is_the_text_of_the_list(items: list[object]) -> None:
    text = await fill_list(to_json(Outcomes([])), [to_json(item) for item in items])
    assert json.loads(text) == {"results": items} and text == to_json(Outcomes(items))
