"""The garbage collector around a run."""

import contextlib
import gc

from rocstar.engine.garbage import YOUNG, settled_garbage


def test_what_is_there_is_not_looked_at_inside_and_again_behind() -> None:
    thresholds = gc.get_threshold()
    with contextlib.suppress(KeyError), settled_garbage():
        assert gc.get_freeze_count() > 0 and gc.get_threshold()[0] == YOUNG
        raise KeyError
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == thresholds
