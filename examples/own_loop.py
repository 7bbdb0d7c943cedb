"""GRPO with Resample-on-Correct as a custom loop, made of the parts that `rocstar train` is made of.

python own_loop.py [--stages.0.steps=10]    the quickstart's recipe with any of its fields; the run is in own_loop/
"""

import asyncio
import sys
from math import fsum, sqrt

import rocstar.train.primitives as parts
from rocstar.train import load_recipe, train


async def attempt(agent: parts.Agent, task: parts.Task, key: parts.TrajectoryKey, **options) -> parts.Trajectory:
    """The policy writes turns, and the sandbox runs their calls, until there is an answer to grade."""
    async with agent.attempt(task, key, **options) as draft:
        async with agent.tools.open(seed=draft.tool_seed) as tools:
            while await agent.sample(draft):
                draft.answer(await agent.reply(draft, tools))
        await parts.grade(agent.judge, draft)
    return draft.trajectory()


def advantages(rewards: list[float]) -> list[float]:
    """Each reward's distance from the mean of the kept siblings, in standard deviations."""
    mean = fsum(rewards) / max(1, len(rewards))
    spread = sqrt(fsum((reward - mean) ** 2 for reward in rewards) / max(1, len(rewards) - 1))
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


async def loop(run: parts.Run) -> None:
    rl, stage, learner, seed = run.recipe.rl, run.recipe.stages[0], run.team, run.recipe.run.seed
    agent, cursor = parts.agent_for(run.live.agent, stage), parts.TaskCursor(run.tasks[0], seed=seed)
    await parts.begin_loop(run)
    for step in range(1, stage.steps + 1):
        tasks = cursor.take(rl.tasks_per_step)
        if step <= run.step:  # of a run that goes on
            continue
        siblings = {"size": rl.rollouts_per_task, "seed": seed, "step": step, "attempt": attempt}
        groups = await asyncio.gather(*(parts.run_group(agent, task, **siblings) for task in tasks))
        chosen = [parts.resample_on_correct(group, rl, seed=seed) for group in groups]
        selection = parts.Selection.of(chosen, [advantages([o.reward for o in one.outcomes]) for one in chosen])
        updates = parts.pack_updates(selection, run.recipe, step=step, ranks=learner.world.size, cost=learner.row_cost)
        if updates:  # none where every group has equal rewards
            async with run.publisher.updating():
                later = [await learner.measured(micros, rl.temperature) for micros in updates[1:]]
                for micros in updates[:1] + later:
                    await learner.forward_backward(micros, parts.loss_settings(run.recipe))
                    await learner.optim_step()
                await parts.publish(run)
        await parts.record(run, stage, selection)
        run.log(parts.rollout_metrics(selection), stage=stage.name, phase="rl")
    await parts.save(run)
    await run.evaluation.run_evaluation(run)


if __name__ == "__main__":
    ended = asyncio.run(train(load_recipe("quickstart", sys.argv[1:]), "own_loop", loop=loop))
    print("reward of each step:", *(f"{row['reward/mean']:.2f}" for row in ended.steps))
