"""rocstar from a notebook, or from any program whose event loop runs already.

    from rocstar.train.notebook import evaluate, load_recipe, train

    recipe = load_recipe("quickstart", ["--run.seed=3"])
    await train(recipe, "runs/mine")
    scores = await evaluate(recipe, "runs/mine/checkpoints/step_24")
    scores.result.avg, scores.result.ci_low, scores.result.ci_high

The same runs as `rocstar train` and `rocstar eval`, in the same folders: a run begun here is resumed there,
and the other way round. Interrupting the cell is Ctrl-C: the last checkpoint stays whole. A program without a
loop calls `rocstar.train.main.train` and `rocstar.train.alone.evaluate_model`.
"""

from __future__ import annotations

from pathlib import Path

from rocstar.train.alone import Evaluated, evaluate_in_loop
from rocstar.train.config import Recipe, load_recipe
from rocstar.train.main import train_in_loop

__all__ = ["Evaluated", "Recipe", "evaluate", "load_recipe", "train"]


async def train(
    recipe: Recipe, run_dir: str | Path, *, resume: bool = False, rollouts: str | Path | None = None
) -> None:
    """Run a whole recipe into a folder, or learn its stages from the records at `rollouts`.

    Raises:
        ConfigError: something of the recipe or the folder cannot be used; nothing was begun.
        TrainingStopped: the run cannot usefully go on.
    """
    records = None if rollouts is None else Path(rollouts)
    await train_in_loop(recipe, Path(run_dir), resume=resume, rollouts=records)


async def evaluate(
    recipe: Recipe, model: str | Path, *, limit: int = 0, out: str | Path | None = None
) -> Evaluated:
    """avg@k and pass@k of a model on the recipe's held-out tasks, of the first `limit` (0: all) of them.

    With `out`, every attempt and the numbers are kept in that new folder. ConfigError as for `train`.
    """
    return await evaluate_in_loop(recipe, str(model), limit=limit, out=None if out is None else Path(out))
