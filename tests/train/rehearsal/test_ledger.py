"""A storage is booked from its making to its end, once, under what it is for."""

from __future__ import annotations

import torch

from rocstar.train.rehearsal.ledger import BLOCK, Category, MemoryLedger

BLOCKS = 4 * BLOCK // 4
"""Float32 numbers that fill four blocks."""


def test_what_dies_is_no_longer_held_and_the_peak_stays() -> None:
    ledger = MemoryLedger()
    with ledger.act("act"):
        a = torch.empty(BLOCKS)
        ledger.made(a)
        ledger.made(a.view(2, -1))  # the same storage
        assert ledger.total == 4 * BLOCK
        b = torch.empty(1)
        with ledger.scope(Category.head):
            ledger.made(b)
        del a
        assert ledger.total == ledger.held[Category.head] == BLOCK
    (peak,) = ledger.peaks
    assert peak.total == 5 * BLOCK and peak.held_after == BLOCK
    assert peak.by_category[Category.temporary] == 4 * BLOCK


def test_a_storage_that_is_emptied_and_refilled_is_of_who_refills_it() -> None:
    ledger, x = MemoryLedger(), torch.empty(BLOCKS)
    with ledger.scope(Category.parameters):
        ledger.made(x)
    ledger.resized(x.untyped_storage(), 0)
    assert ledger.total == 0
    with ledger.scope(Category.gathers):
        ledger.resized(x.untyped_storage(), 2 * BLOCK)
    assert ledger.held[Category.gathers] == 2 * BLOCK and not ledger.held[Category.parameters]


def test_an_act_begins_with_what_is_held() -> None:
    ledger, x = MemoryLedger(), torch.empty(BLOCKS)
    ledger.made(x)
    with ledger.act("next"):
        pass
    assert ledger.peaks[0].total == 4 * BLOCK
    ledger.file([x], Category.moments)
    assert ledger.held[Category.moments] == 4 * BLOCK == ledger.total
