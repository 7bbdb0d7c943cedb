"""Pieces of a turn add up to one completion, whoever wrote them."""

import math

from rocstar.engine.inference.base import Generation, GenerationBuilder, StopReason


def piece(ids: list[int], *spans: tuple[int, int, int], cached: int = 0) -> Generation:
    return Generation(
        ids=tuple(ids),
        logprobs=tuple(-0.5 for _ in ids),
        version_spans=spans,
        finish=StopReason.aborted,
        cached_tokens=cached,
    )


def test_spans_that_meet_in_one_version_are_one() -> None:
    written = GenerationBuilder()
    written.add_generation(piece([1, 2], (0, 1, 3), (1, 2, 4), cached=7))
    written.add_generation(piece([]))
    written.add_generation(piece([5, 6, 7], (0, 2, 4), (2, 3, 5), cached=9))
    assert written.result(StopReason.stop) == Generation(
        ids=(1, 2, 5, 6, 7),
        logprobs=(-0.5,) * 5,
        version_spans=((0, 1, 3), (1, 4, 4), (4, 5, 5)),
        finish=StopReason.stop,
        cached_tokens=7,
    )


def test_what_nobody_wrote_lies_between_spans_of_one_version() -> None:
    """A tool's result has no log-prob and no version."""
    written = GenerationBuilder()
    written.add([1], [-0.1], [(0, 1, 2)])
    written.add([9, 9], [None, None])
    written.add([2], [math.nan], [(0, 1, 2)])
    assert written.spans == [(0, 1, 2), (3, 4, 2)]
    assert written.logprobs[:3] == [-0.1, None, None] and math.isnan(written.logprobs[3] or 0.0)
