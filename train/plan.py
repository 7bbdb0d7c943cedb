"""`--dry-run`: what a recipe will do, in numbers, without building anything."""

from __future__ import annotations

from rocstar.train.config import Recipe


def describe(recipe: Recipe, path: str) -> str:
    """A table of the stages and the launch commands."""
    rl = recipe.rl
    rollouts = rl.tasks_per_step * rl.rollouts_per_task
    lines = [
        f"# {recipe.run.name}: {recipe.sft.steps} SFT steps, {sum(s.steps for s in recipe.stages)} RL steps",
        f"# per RL step: {rl.tasks_per_step} tasks x {rl.rollouts_per_task} rollouts = {rollouts} "
        "trajectories, "
        f"{rl.group_size} kept per task (RoC {rl.roc_mode}), {rl.num_updates_per_batch} optimizer steps",
        "# stage           steps  response tokens  turns  filter  worst-case tokens per step",
    ]
    for stage in recipe.stages:
        worst = rollouts * stage.max_response_tokens
        lines.append(
            f"# {stage.name:<14} {stage.steps:>6}  {stage.max_response_tokens:>15,}  {stage.max_turns:>5}  "
            f"{stage.filter_rollouts or '-':>6}  {worst:>26,}"
        )
    lines += [
        "# one process:   " + f"rocstar train {path}",
        "# several:       " + f"torchrun --nproc-per-node=N -m rocstar.train {path}",
    ]
    return "\n".join(lines)
