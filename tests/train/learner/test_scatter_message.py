"""What a rank unpacks is what rank 0 packed, to the last bit, and columns are not in the header."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from rocstar.train.learner.batch import MicroBatch, empty_microbatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.team import ALIGNED, ScatterMessage, unpack_message


def micros() -> list[MicroBatch]:
    rng = np.random.default_rng(0)
    examples = [
        Example(
            ids=rng.integers(150_000, size=300),
            mask=np.arange(300) % 7 > 2,
            weights=rng.random(300),
            rollout_logprobs=-rng.random(300),
            advantage=float(rng.normal()),
            name=f"task/{k}",
        )
        for k in range(6)
    ]
    return [*pack(examples, tokens_per_microbatch=700), empty_microbatch()]


def assert_equal(found: MicroBatch, expected: MicroBatch) -> None:
    for field in dataclasses.fields(MicroBatch):
        mine, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, Tensor):
            assert mine.dtype == other.dtype and torch.equal(mine, other), field.name
        else:
            assert mine == other, field.name


def test_microbatches_come_as_they_were() -> None:
    sent = micros()
    packed = ScatterMessage.of(("verb", (sent, 7)))
    verb, (found, number) = unpack_message(packed.header, packed.buffer())
    assert (verb, number) == ("verb", 7) and len(found) == len(sent) == 4
    for mine, other in zip(found, sent, strict=True):
        assert_equal(mine, other)


def test_numbers_that_no_4_bytes_hold_come_as_they_were_too() -> None:
    """They are refused later, by what they are; and a NaN keeps its bits."""
    base = micros()[0]
    ids = base.ids_I.clone()
    ids[0] = -(1 << 40)
    logprobs = base.rollout_logprobs_T.clone()
    logprobs[:2] = torch.tensor([float("nan"), float("-inf")])
    wrong = dataclasses.replace(base, ids_I=ids, rollout_logprobs_T=logprobs)
    packed = ScatterMessage.of(wrong)
    found = unpack_message(packed.header, packed.buffer())
    assert found.ids_I[0] == -(1 << 40) and torch.equal(found.ids_I, ids)
    assert torch.equal(found.rollout_logprobs_T.view(torch.int32), logprobs.view(torch.int32))


def test_columns_are_bytes_of_the_message_each_where_it_can_be_computed_with() -> None:
    sent = micros()
    packed = ScatterMessage.of(sent)
    tokens = sum(len(micro.ids_I) for micro in sent)
    assert len(packed.header.pickled) < 3000 < packed.header.num_bytes < 30 * tokens
    message = packed.buffer()
    (first, *_) = unpack_message(packed.header, message)
    weights = first.weights_T
    offset = weights.data_ptr() - message.data_ptr()
    assert 0 <= offset < len(message) and offset % ALIGNED == 0, "not copied again"


def test_a_payload_without_columns_needs_no_message() -> None:
    packed = ScatterMessage.of(("stop", ()))
    assert packed.header.num_bytes == 0 == len(packed.buffer())
    assert unpack_message(packed.header, packed.buffer()) == ("stop", ())
