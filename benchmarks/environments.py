"""Does the reward rise in the example environments of TRL, OpenEnv and verifiers, whose files are unchanged?

    python benchmarks/environments.py trl
    python benchmarks/environments.py openenv --address http://127.0.0.1:8000    (of `openenv init echo_words`)
    python benchmarks/environments.py verifiers --address tcp://127.0.0.1:5000   (a taskset of sums)

A model from nothing learns the form of a call from conversations with random actions, then reinforcement learns the
environment. Prints avg@4 on held-out tasks before and after, and the rise with a paired bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quickstart_seeds import rise

from rocstar.train.recipe.load import load_recipe
from rocstar.train.tasks.environments.kinds import environments_of

INCREMENT = '''"""The example of TRL's documentation, docs/source/grpo_trainer.md (Apache-2.0), unchanged."""

import random


class IncrementEnv:
    # Reserved methods
    def reset(self, **kwargs) -> str | None:  # required; called at the start of each rollout
        self.counter = 0
        self.target = random.randint(1, 6)  # self-sample the task
        return f"Increment the counter by {self.target}."  # returned string becomes the prompt

    def get_reward(self) -> float:  # optional: the environment scores itself from its own state
        return float(self.counter == self.target)

    # Public methods (exposed as tools)
    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter
'''
MODEL = {"path": "scratch", "template": "qwen3"}
SCRATCH = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 128}


def recipe_of(environment: dict[str, Any], heldout: dict[str, Any], steps: int, seed: int) -> dict[str, Any]:
    """Return the recipe of a run in one environment."""
    return {
        "run": {"name": "environment", "seed": seed},
        "model": {**MODEL, "scratch": {"vocab_size": 700, **SCRATCH}},
        "sft": {"steps": 300, "data": "chat.jsonl", "batch_size": 16, "optimizer": "muon", "lr": 1e-2,
                "warmup_steps": 10, "max_tokens": 900},
        "environments": [environment],
        "rl": {"tasks_per_step": 8, "max_staleness": 0, "rollouts_per_task": 16, "group_size": 8, "lr": 1e-3,
               "warmup_steps": 0},
        "stages": [{"steps": steps, "max_response_tokens": 96, "max_turns": 2}],
        "eval": [{"samples_per_task": 4, "data": heldout}],
        "engine": {"max_running": 128, "deterministic": True},
    }  # fmt: skip


def trl(folder: Path, _: str, seed: int, steps: int) -> dict[str, Any]:
    """The class of TRL's documentation; its tasks are seeds."""
    (folder / "increment.py").write_text(INCREMENT)
    environment = {"kind": "increment:IncrementEnv", "data": {"source": "seeds", "size": 64}}
    heldout = {"source": "seeds", "size": 32, "seed": 1, "environment": "IncrementEnv"}
    return recipe_of(environment, heldout, steps, seed)


def openenv(folder: Path, address: str, seed: int, steps: int) -> dict[str, Any]:
    """The server of OpenEnv's template: it echoes a message, and rewards its length up to ten characters."""
    environment = {"kind": "openenv", "args": {"url": address, "reward": "last"}, "max_episodes": 1,
                   "prompt": "Say a word. ", "data": {"source": "seeds", "size": 64}}  # fmt: skip
    heldout = {"source": "seeds", "size": 32, "seed": 1, "environment": "openenv"}
    recipe = recipe_of(environment, heldout, steps, seed)
    recipe["engine"]["deterministic"] = False
    return recipe


def verifiers(folder: Path, address: str, seed: int, steps: int) -> dict[str, Any]:
    """A taskset of sums; verifiers' own agent asks the policy."""
    rows = [{"name": f"s{k}", "prompt": f"{k}+1?", "answer": str(k + 1)} for k in range(1, 9)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "heldout.jsonl").write_text("".join(json.dumps({**row, "name": "h"}) + "\n" for row in rows))
    environment = {"kind": "verifiers", "args": {"address": address}, "data": {"source": "rows.jsonl"}}
    recipe = recipe_of(environment, {"source": "heldout.jsonl", "environment": "verifiers"}, steps, seed)
    recipe["rl"] |= {"tasks_per_step": 4, "rollouts_per_task": 8}
    return recipe


def echoed(message: str, length: int) -> str:
    """Return an observation of OpenEnv's template."""
    return json.dumps({"echoed_message": message, "message_length": length})


def conversations(name: str, functions: list[Any], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield conversations in the environment's form, with random actions."""
    for _ in range(3000):
        number = rng.randint(1, 6)
        word = "".join(rng.choices("abcde", k=rng.randint(1, 6)))
        if name == "verifiers":
            asked, arguments = f"{rng.randint(1, 8)}+1?", None
        elif name == "trl":
            asked, arguments = f"Increment the counter by {rng.randint(1, 6)}.", {"step": number}
        else:
            asked, arguments = f"Say a word. {echoed('Echo Words environment ready!', 0)}", {"message": word}
        messages = [{"role": "user", "content": asked}]
        if arguments is not None:
            call = {"name": functions[0]["function"]["name"], "arguments": arguments}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            )
            result = echoed(word, len(word)) if name == "openenv" else str(number)
            messages.append({"role": "tool", "content": result})
        answer = "done" if arguments else str(rng.randint(2, 9))
        yield {"messages": [*messages, {"role": "assistant", "content": answer}], "tools": functions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["trl", "openenv", "verifiers"])
    parser.add_argument("--address", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs", type=Path, default=Path("runs/environments"))
    given = parser.parse_args()
    folder = (given.runs / f"{given.name}-{given.seed}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chat.jsonl").touch()
    made = {"trl": trl, "openenv": openenv, "verifiers": verifiers}[given.name]
    table = made(folder, given.address, given.seed, given.steps)
    import tomli_w

    (folder / "recipe.toml").write_text(tomli_w.dumps(table))
    (environment,) = environments_of(load_recipe(folder / "recipe.toml")).values()
    with (folder / "chat.jsonl").open("w") as file:
        for row in conversations(given.name, [dict(one) for one in environment.functions], random.Random(given.seed)):
            file.write(json.dumps(row) + "\n")
    command = [sys.executable, "-m", "rocstar.train", str(folder / "recipe.toml"), "--output-dir", str(folder / "run")]
    with (folder / "log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    print(json.dumps({"name": given.name, "seed": given.seed, "steps": given.steps, **rise(folder / "run")}))


if __name__ == "__main__":
    main()
