"""The garbage collector around a run."""

import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from rocstar.engine.garbage import YOUNG, settled_garbage


@pytest.fixture
def _nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_is_there_is_not_looked_at_inside_and_again_behind() -> None:
    thresholds = gc.get_threshold()
    with contextlib.suppress(KeyError), settled_garbage():
        assert gc.get_freeze_count() > 0 and gc.get_threshold()[0] == YOUNG
        raise KeyError
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == thresholds


class Node:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_frozen_is_so_behind_it_and_what_a_run_left_in_cycles_is_gone() -> None:
    gc.freeze()
    node = Node()  # of before: looked at behind the run, as it had been before it
    with settled_garbage():
        left = [weakref.ref(node), weakref.ref(Node())]
        del node
    assert [one() for one in left] == [None, None]
    assert gc.get_freeze_count() > 0
