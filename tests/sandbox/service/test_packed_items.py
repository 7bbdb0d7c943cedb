"""Packed sequences: few objects for many items, and equal items."""

import gc
import json
import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.packed_items import LONG_BYTES, PACKED_FROM, RECENT, PackedItems, pack_items
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions, decode_submissions
from rocstar.sandbox.service.dialects.native import decode_batch
from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import ExecRequest, Limits
from tests.fakes.sandbox import FakeSandbox, ok

RULES = ServiceLimits(flavours=("stdlib", "numeric"))

REQUESTS = st.builds(
    ExecRequest,
    code=st.text(max_size=9) | st.just("x" * LONG_BYTES),
    stdin=st.text(max_size=3),
    limits=st.sampled_from([Limits(), Limits(wall_s=0.1)]),
    seed=st.none() | st.integers(0, (1 << 64) - 1),
    files=st.dictionaries(st.sampled_from(["a", "b/c"]), st.binary(max_size=3), max_size=1),
)


@settings(max_examples=40, deadline=None)
@given(items=st.lists(REQUESTS, max_size=8), asked=st.lists(st.integers(-8, 7), max_size=8))
def test_each_item_is_what_was_given(items: list[ExecRequest], asked: list[int]) -> None:
    made = pickle.loads(pickle.dumps(PackedItems(items)))  # as from a decoding process
    assert (list(made), made[1:-1], len(made)) == (items, items[1:-1], len(items))
    for index in asked:
        if -len(items) <= index < len(items):
            assert made[index] == items[index]


def test_many_are_few_objects_and_some_of_those_that_were_asked_for() -> None:
    """The garbage collector would traverse all of them."""
    few = [1] * (PACKED_FROM - 1)
    assert pack_items(few) is few
    made = pack_items([ExecRequest(code=str(number), seed=number) for number in range(PACKED_FROM)])
    gc.collect()
    before = len(gc.get_objects())
    again = PackedItems(made)
    assert len(gc.get_objects()) - before < 4 * RECENT  # a request and its limits, and what was asked for
    assert [again[number].seed for number in range(PACKED_FROM)] == list(range(PACKED_FROM))
    assert isinstance(made, PackedItems) and len(again._recent) == RECENT and not again._long


def test_a_batch_of_many_is_packed_with_its_mistakes() -> None:
    items: list[Any] = [{"code": f"{number}"} for number in range(PACKED_FROM)]
    items[7], items[-1] = {"code": 7}, {"code": "\ud800"}
    call = decode_batch(json.dumps({"requests": items}).encode(), RULES)
    assert isinstance(call.requests, PackedItems)
    sent = call.programs
    failures = [(place, json.loads(error)["error"]["field"]) for place, error in call.failures()]
    assert failures == [(place, f"requests[{place}].code") for place in (7, PACKED_FROM - 1)]
    assert [sent[0].code, sent[7].code, sent[-1].code] == ["0", "8", str(PACKED_FROM - 2)]
    assert [one.code for one in sent[5:8]] == ["5", "6", "8"]
    assert [*call.runnable] == [place for place in range(PACKED_FROM - 1) if place != 7]
    assert all(isinstance(call.requests[place], RequestError) for place in call.invalid)


def test_submissions_of_many_are_packed() -> None:
    items = [{"type": "math" if number == 5 else "python", "solution": str(number)} for number in range(PACKED_FROM)]
    body = json.dumps({"submissions": items}).encode()
    _, submissions, programs = decode_submissions(body, RULES, JudgeOptions().limits)
    assert isinstance(submissions, PackedItems) and len(submissions) == PACKED_FROM
    assert len(programs) == PACKED_FROM - 1 and programs[5].code.startswith("6")


async def test_a_large_batch_is_answered_in_its_order(serve: Any) -> None:
    """Through the process in which it is decoded."""
    items: list[dict[str, Any]] = [{"code": f"{number:0120}"} for number in range(PACKED_FROM + 1)]
    items[3]["code"] = 3
    async with serve(FakeSandbox(lambda request: ok(request.code))) as service:
        status, answer = await service.post("/v1/batch", {"requests": items})
        submissions = [{"type": "python", "solution": one["code"]} for one in items if one["code"] != 3]
        submissions[5] |= {"type": "math", "sub_id": "five"}
        judged = await service.post("/run/long-batch", {"submissions": submissions, "sub_id": "all"})
    assert status == 200 and answer["results"].pop(3)["error"]["field"] == "requests[3].code"
    assert [int(one["stdout"]) for one in answer["results"]] == [0, 1, 2, *range(4, PACKED_FROM + 1)]
    assert judged[1]["sub_id"] == "all" and judged[1]["results"].pop(5)["sub_id"] == "five"
    numbers = [int(one["stdout"].split()[0]) for one in judged[1]["results"]]
    assert numbers == [0, 1, 2, 4, 5, *range(7, PACKED_FROM + 1)]
