# /// script
# requires-python = ">=3.11"
# dependencies = ["rocstar[train]"]
# ///
"""A run in one file: its dependencies, its reward and its recipe. About a minute on two free CPU cores.

uv run quickstart.py                                       installs the dependencies of the block above
pip install 'rocstar[train]' && python quickstart.py       the same by hand
python quickstart.py --run.seed=1 --stages.0.steps=20      any field of the recipe
"""

import asyncio
import shlex
import sys
import tempfile
import tomllib
from pathlib import Path

from rocstar.train import load_recipe, train
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.own_reward import Attempt, Reward
from rocstar.train.tasks.verify import extract_answer

RECIPE = """
[run]
name = "one_file"

# A Qwen3 of 336,000 parameters with random weights. A folder or a hub name trains a pretrained model.
[model]
path = "scratch"
template = "compact"

[model.scratch]
vocab_size = 900
hidden_size = 96
num_layers = 3
num_heads = 6
num_kv_heads = 3
intermediate_size = 192

[tool]
text = "brief"
wall_s = 2.0
memory_mb = 256
max_output_tokens = 48

[reward]
kind = "__main__:reward"

[tasks.sums]
source = "reasoning_gym"
size = 400
seed = 1

[tasks.sums.families]
chain_sum = { min_terms = 3, max_terms = 3, min_digits = 2, max_digits = 2 }
products = { min_digits = 2, max_digits = 3 }
gcd = { min_value = 10, max_value = 999, exclude_answers = ["1"] }

# Demonstrations teach the form of calls and answers, with many wrong programs: the rest is left to RL.
[sft]
steps = 250
num_demonstrations = 3000
batch_size = 32
optimizer = "muon"
lr = 1e-2
warmup_steps = 30
decay_fraction = 0.4
max_tokens = 400
demonstration_tasks = { tasks = "sums", size = 1200, seed = 1000 }

[rl]
tasks_per_step = 8
rollouts_per_task = 16
group_size = 8
lr = 7e-4
warmup_steps = 0
num_updates_per_batch = 2

[[stages]]
steps = 8
max_response_tokens = 160
max_turns = 4
data = "sums"

[[eval]]
samples_per_task = 4
data = { tasks = "sums", size = 11, seed = 7 }

[engine]
max_running = 384
deterministic = true
"""


def reward(attempt: Attempt) -> Reward:
    """Return 1 for the right answer, less 0.1 for each tool call after the first."""
    answer = extract_answer(attempt.final_text).answer
    is_correct = not attempt.is_truncated and answer == attempt.task.answer
    extra = max(0, sum(len(turn.calls) for turn in attempt.turns) - 1)
    return Reward(value=max(0.5, 1 - 0.1 * extra) if is_correct else 0.0, is_correct=is_correct)


def main() -> None:
    """Train into a new folder, and print the scores before and after RL."""
    recipe = load_recipe(tomllib.loads(RECIPE), sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix="rocstar-")) / recipe.run.name
    run = asyncio.run(train(recipe, folder))
    before, after = (row["eval/heldout/avg@4"] for row in (run.evaluations[0], run.evaluations[-1]))
    print(f"held-out avg@4: {before:.2f} before RL, {after:.2f} after it")
    rocstar = Path(sys.executable).with_name("rocstar")
    print(f"look at every trajectory: {shlex.join([str(rocstar), 'view', str(run.directory)])}")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"quickstart.py: {error}")
