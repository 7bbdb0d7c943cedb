"""A storage is booked from its making to its end, once, under what it is for."""

import torch

from rocstar.train.rehearsal.memory_tracker import BLOCK, Category, MemoryTracker

BLOCKS = 4 * BLOCK // 4
"""Float32 numbers that fill four blocks."""


def test_what_dies_is_no_longer_held_and_the_peak_stays() -> None:
    tracker = MemoryTracker()
    with tracker.act("act"):
        a = torch.empty(BLOCKS)
        tracker.made(a)
        tracker.made(a.view(2, -1))  # the same storage
        assert tracker.total == 4 * BLOCK
        b = torch.empty(1)
        with tracker.scope(Category.head):
            tracker.made(b)
        del a
        assert tracker.total == tracker.held[Category.head] == BLOCK
    (peak,) = tracker.peaks
    assert peak.total == 5 * BLOCK and peak.held_after == BLOCK
    assert peak.by_category[Category.temporary] == 4 * BLOCK


def test_a_storage_that_is_emptied_and_refilled_is_of_who_refills_it() -> None:
    tracker, x = MemoryTracker(), torch.empty(BLOCKS)
    with tracker.scope(Category.parameters):
        tracker.made(x)
    tracker.resized(x.untyped_storage(), 0)
    assert tracker.total == 0
    with tracker.scope(Category.gathers):
        tracker.resized(x.untyped_storage(), 2 * BLOCK)
    assert tracker.held[Category.gathers] == 2 * BLOCK and not tracker.held[Category.parameters]


def test_an_act_begins_with_what_is_held() -> None:
    tracker, x = MemoryTracker(), torch.empty(BLOCKS)
    tracker.made(x)
    with tracker.act("next"):
        pass
    assert tracker.peaks[0].total == 4 * BLOCK
    tracker.file([x], Category.moments)
    assert tracker.held[Category.moments] == 4 * BLOCK == tracker.total
