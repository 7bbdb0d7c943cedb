"""The parts of a training loop, for custom loops: docs/guide/own-loop.md, examples/own_loop.py.

The built-in loop (loop.py) and turn loop (engine/rollout/rollout.py) are made of the same parts.

    async def loop(run: Run) -> None: ...
    await train(load_recipe("quickstart"), "runs/mine", loop=loop)

| part | does |
|---|---|
| `begin_loop(run)` | evaluates and saves a new run, or restores one from its checkpoint |
| `run_group(agent, task, size=, seed=, step=)` | rolls out siblings, each by `attempt` or a function like it |
| `Agent.attempt`, `Policy.sample`, `Agent.reply`, `Draft.answer`, `grade` | one attempt, turn by turn |
| `Sandbox.run(ExecRequest(code=...))` | runs a program; the recipe's tools call it |
| `resample_on_correct(group, ...)`, `Selection.of` | which siblings are learned, with their advantages |
| `pack_updates(selection, ...)` | microbatches of each optimizer step |
| `LearnerTeam.measured`, `forward_backward`, `optim_step` | an update, on all ranks of the learner |
| `publish(run)` | the engine samples with the new weights |
| `record(run, ...)`, `run.log(...)`, `save(run)` | records, metrics and a checkpoint |
"""

from rocstar.engine.rollout.group import run_group
from rocstar.engine.rollout.rollout import Agent, Draft, Policy, grade
from rocstar.engine.types import Group, Task, Trajectory, TrajectoryKey
from rocstar.sandbox.types import ExecRequest, Sandbox
from rocstar.train.groups.packing import pack_updates
from rocstar.train.groups.rollout_metrics import rollout_metrics
from rocstar.train.groups.selection import Selection, resample_on_correct
from rocstar.train.groups.source import agent_for
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.learner.settings import loss_settings
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.loop import begin_loop, publish, record, save
from rocstar.train.run import Run

# fmt: off
__all__ = [
    "Agent", "Draft", "ExecRequest", "Group", "LearnerTeam", "Policy", "Run", "Sandbox", "Selection", "Task",
    "TaskCursor", "Trajectory", "TrajectoryKey", "agent_for", "begin_loop", "grade", "loss_settings", "pack_updates",
    "publish", "record", "resample_on_correct", "rollout_metrics", "run_group", "save",
]
# fmt: on
