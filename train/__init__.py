"""The learner's side: recipe, algorithm, update, evaluation and the command line.

For programs whose event loop runs already, notebooks among them, `train` and `eval` are coroutines:

    from rocstar.train import evaluate, load_recipe, train

    recipe = load_recipe("quickstart", ["--run.seed=3"])
    run = await train(recipe, "runs/mine")
    run.ended, run.steps[-1]["reward/mean"], run.evaluations, run.trajectories(24)
    scores = await evaluate(recipe, "runs/mine/checkpoints/step_24")
    scores.result.avg, scores.result.ci_low, scores.result.ci_high    # of the first set; all: scores.results

The same runs as `rocstar train` and `rocstar eval`, in the same folders: a run begun here is resumed there,
and the other way round. Interrupting the cell is Ctrl-C: the last checkpoint stays whole. A program without a
loop calls `rocstar.train.main.train` and `rocstar.train.evaluation.saved_model.evaluate_model`.

Names are imported when they are first asked for: a recipe is read without torch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rocstar.engine  # noqa: F401  it sets how OpenMP's threads wait, before torch is loaded
from rocstar.sandbox import lazy_names

if TYPE_CHECKING:
    from rocstar.train.evaluation.saved_model import Evaluated as Evaluated
    from rocstar.train.recipe.config import Recipe as Recipe
    from rocstar.train.recipe.load import load_recipe as load_recipe
    from rocstar.train.record.callbacks import Callback as Callback
    from rocstar.train.record.callbacks import StopRun as StopRun
    from rocstar.train.record.training_run import TrainingRun as TrainingRun
    from rocstar.train.run import Run

_HOMES = {
    "Callback": "record.callbacks",
    "Evaluated": "evaluation.saved_model",
    "Recipe": "recipe.config",
    "StopRun": "record.callbacks",
    "TrainingRun": "record.training_run",
    "load_recipe": "recipe.load",
}

__all__ = ["Callback", "Evaluated", "Recipe", "StopRun", "TrainingRun", "evaluate", "load_recipe", "train"]


async def train(
    recipe: Recipe,
    run_dir: str | Path,
    *,
    resume: bool = False,
    rollouts: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    loop: Callable[[Run], Awaitable[None]] | None = None,
) -> TrainingRun:
    """Run a whole recipe into a folder, or learn its stages from the records at `rollouts`.

    Return the run; `TrainingRun(run_dir)` in another cell reads it while it trains.

    Args:
        recipe: from `load_recipe`, or made of its sections.
        run_dir: the run's folder.
        resume: go on from its last complete checkpoint.
        rollouts: records of another run.
        callbacks: listen to the run, beside those that the recipe names.
        loop: takes the run when its cold start is over, on rank 0; None: the stages of the recipe. See
            rocstar.train.primitives.

    Raises:
        ConfigError: something of the recipe or the folder cannot be used; nothing was begun.
        TrainingStopped: the run cannot usefully go on.
    """
    from rocstar.train.compose.setup import TrainOrder
    from rocstar.train.main import work_of_rank_0
    from rocstar.train.record.training_run import TrainingRun

    records = None if rollouts is None else Path(rollouts)
    order = TrainOrder(
        recipe=recipe, run_dir=Path(run_dir), resume=resume, rollouts=records, callbacks=callbacks, loop=loop
    )
    with work_of_rank_0(order) as work:
        if work is not None:
            await work
    return TrainingRun(Path(run_dir))


async def evaluate(
    recipe: Recipe, model: str | Path, *, limit: int = 0, out: str | Path | None = None, resume: bool = False
) -> Evaluated:
    """avg@k and pass@k of a model on the recipe's sets, on the first `limit` (0: all) tasks of each.

    With `out`, every attempt and the numbers are kept in that new folder; `resume` goes on with the one that
    was stopped there. ConfigError as for `train`.
    """
    from rocstar.train.evaluation.saved_model import evaluate_in_loop
    from rocstar.train.reading.view.export_page import write_eval_report

    place = None if out is None else Path(out)
    return await evaluate_in_loop(
        recipe, str(model), limit=limit, out=place, resume=resume, write_page=write_eval_report
    )


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
