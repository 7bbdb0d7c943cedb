"""An engine beside the learner gives up half of its threads while it learns, and takes them back."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.serving import embedded
from rocstar.train.serving.embedded import halve_threads


@pytest.mark.parametrize(("total", "half"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_the_engine_has_half_while_the_learner_learns(total: int, half: int) -> None:
    mine = torch.get_num_threads()
    with ThreadPoolExecutor(1) as engine:
        engine.submit(torch.set_num_threads, total).result()
        for _ in range(2):
            with halve_threads(engine, total):
                assert engine.submit(torch.get_num_threads).result() == half
            assert engine.submit(torch.get_num_threads).result() == total
        with pytest.raises(KeyError), halve_threads(engine, total):
            raise KeyError
        assert engine.submit(torch.get_num_threads).result() == total
    assert torch.get_num_threads() == mine, "the learner keeps its own"
    torch.set_num_threads(mine)  # for threads to come, too


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_run_shares_them_where_the_two_work_beside_each_other(staleness: int) -> None:
    recipe = Recipe(rl=RlConfig(max_staleness=staleness))
    mine = torch.get_num_threads()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(torch.set_num_threads, 4).result()
        async with embedded._engine_thread(recipe, thread) as (own, learning):
            with learning():
                assert own.submit(torch.get_num_threads).result() == (2 if staleness else 4)
                assert thread.submit(torch.get_num_threads).result() == 4
            assert own.submit(torch.get_num_threads).result() == 4
    torch.set_num_threads(mine)
