"""An engine beside the learner gives up half of its threads while it learns, and takes them back."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rocstar.train.shared_threads import SharedThreads


@pytest.mark.parametrize(("total", "half"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_the_engine_has_half_while_the_learner_learns(total: int, half: int) -> None:
    mine = torch.get_num_threads()
    with ThreadPoolExecutor(1) as engine:
        engine.submit(torch.set_num_threads, total).result()
        shared = SharedThreads(engine, total)
        for _ in range(2):
            with shared.learning():
                assert engine.submit(torch.get_num_threads).result() == half
            assert engine.submit(torch.get_num_threads).result() == total
        with pytest.raises(KeyError), shared.learning():
            raise KeyError
        assert engine.submit(torch.get_num_threads).result() == total
    assert torch.get_num_threads() == mine, "the learner keeps its own"
    torch.set_num_threads(mine)  # for threads to come, too
