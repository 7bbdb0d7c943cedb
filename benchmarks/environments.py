"""Does the reward rise in the example environments of TRL, OpenEnv and verifiers, whose files are unchanged?

    openenv init echo_words                                         (served at port 8000)
    V/bin/python benchmarks/verifiers_server.py reverse_text        (in V verifiers 0.4 and its package of this name)
    python benchmarks/environments.py [--seeds 3] [--out FILE]

A model from nothing learns the form of an answer from conversations with random words, numbers at most one off, and
digits in random order; then reinforcement learns the environment. Per seed: the mean reward of held-out tasks after
the cold start and at the end, and the rise with its paired interval.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w
from quickstart_seeds import is_complete, rise, run
from report import ROOT, claim, finish, result_parser

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
SYSTEM = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
MODEL = {"path": "scratch", "template": "qwen3"}
SCRATCH = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 128}


def recipe_of(environment: dict[str, Any], heldout: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the recipe of a run in one environment."""
    return {
        "run": {"name": "environment", "seed": seed, "threads": 1},
        "model": {**MODEL, "scratch": {"vocab_size": 700, **SCRATCH}},
        "sft": {"steps": 300, "data": "chat.jsonl", "batch_size": 16, "optimizer": "muon", "lr": 1e-2,
                "warmup_steps": 10, "max_tokens": 900},
        "environments": [environment],
        "rl": {"tasks_per_step": 8, "max_staleness": 0, "rollouts_per_task": 16, "group_size": 8, "lr": 1e-3,
               "warmup_steps": 0},
        "stages": [{"steps": 40, "max_response_tokens": 96, "max_turns": 2}],
        "eval": [{"samples_per_task": 4, "data": heldout}],
        "engine": {"max_running": 128, "deterministic": True},
    }  # fmt: skip


def trl(folder: Path, _: str, seed: int) -> dict[str, Any]:
    """The class of TRL's documentation; its tasks are seeds."""
    (folder / "increment.py").write_text(INCREMENT)
    environment = {"kind": "increment:IncrementEnv", "data": {"source": "seeds", "size": 64}}
    heldout = {"source": "seeds", "size": 32, "seed": 1, "environment": "IncrementEnv"}
    recipe = recipe_of(environment, heldout, seed)
    recipe["sft"] |= {"steps": 400, "digit_weight": 1.0}
    return recipe


def openenv(folder: Path, address: str, seed: int) -> dict[str, Any]:
    """The server of OpenEnv's template: it echoes a message, and rewards its length up to ten characters."""
    environment = {"kind": "openenv", "args": {"url": address, "reward": "last"}, "max_episodes": 1,
                   "prompt": "Say a word. ", "data": {"source": "seeds", "size": 64}}  # fmt: skip
    heldout = {"source": "seeds", "size": 32, "seed": 1, "environment": "openenv"}
    recipe = recipe_of(environment, heldout, seed)
    recipe["engine"]["deterministic"] = False
    return recipe


def verifiers(folder: Path, address: str, seed: int) -> dict[str, Any]:
    """verifiers' environment of reversed texts: the reward is the similarity of the answer to the reversed prompt."""
    texts = ["".join(digits) for digits in permutations("123456789", 3)]
    random.Random(0).shuffle(texts)
    for name, some in {"rows": texts[32:], "heldout": texts[:32]}.items():
        rows = [{"name": text, "prompt": text, "system_prompt": SYSTEM, "answer": text[::-1]} for text in some]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = {"kind": "verifiers", "args": {"address": address}, "data": {"source": "rows.jsonl"}}
    recipe = recipe_of(environment, {"source": "heldout.jsonl", "environment": "verifiers"}, seed)
    recipe["rl"] |= {"tasks_per_step": 8, "rollouts_per_task": 8}
    recipe["sft"]["digit_weight"] = 1.0
    return recipe


MADE = {"trl": trl, "openenv": openenv, "verifiers": verifiers}
TITLES = {
    "trl": "TRL, the class of its documentation",
    "openenv": "OpenEnv, the server of its template",
    "verifiers": "verifiers, its environment reverse_text",
}


def echoed(message: str, length: int) -> str:
    """Return an observation of OpenEnv's template."""
    return json.dumps({"echoed_message": message, "message_length": length})


def conversations(name: str, functions: list[Any], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield conversations in the environment's form, with random words, or those of a sloppy demonstrator."""
    for _ in range(3000):
        number = rng.randint(1, 6)
        word = "".join(rng.choices("abcde", k=rng.randint(1, 6)))
        if name == "verifiers":
            asked, arguments = "".join(rng.sample("123456789", 3)), None
        elif name == "trl":
            target = rng.randint(1, 6)
            number = target + rng.randint(-1, 1)
            asked, arguments = f"Increment the counter by {target}.", {"step": number}
        else:
            asked, arguments = f"Say a word. {echoed('Echo Words environment ready!', 0)}", {"message": word}
        messages = [{"role": "system", "content": SYSTEM}] if name == "verifiers" else []
        messages.append({"role": "user", "content": asked})
        if arguments is not None:
            call = {"name": functions[0]["function"]["name"], "arguments": arguments}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            )
            result = echoed(word, len(word)) if name == "openenv" else str(number)
            messages.append({"role": "tool", "content": result})
        answer = "done" if arguments else f"<reversed_text>{''.join(rng.sample(asked, 3))}</reversed_text>"
        yield {"messages": [*messages, {"role": "assistant", "content": answer}], "tools": functions}


def prepare(folder: Path, name: str, address: str, seed: int) -> Path:
    """Write the recipe and the conversations of a run; return the recipe's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chat.jsonl").touch()
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(MADE[name](folder, address, seed)))
    (environment,) = environments_of(load_recipe(path)).values()
    with (folder / "chat.jsonl").open("w") as file:
        for row in conversations(name, [dict(one) for one in environment.functions], random.Random(seed)):
            file.write(json.dumps(row) + "\n")
    return path


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--names", nargs="*", default=list(MADE), choices=MADE)
    parser.add_argument("--openenv", default="http://127.0.0.1:8000", help="the server's address")
    parser.add_argument("--verifiers", default="tcp://127.0.0.1:5000", help="the server's address")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "environments")
    given = parser.parse_args()
    results, claims = [], []
    for name in given.names:
        for seed in range(given.seeds):
            folder = (given.runs / f"{name}_{seed}").absolute()
            if not is_complete(folder / "run"):
                run(str(prepare(folder, name, getattr(given, name, ""), seed)), folder / "run", [])
            results.append({"environment": name, "seed": seed, **rise(folder / "run")})
            print(results[-1], flush=True)
        mine = [one for one in results if one["environment"] == name]
        passed = sum(one["ci_low"] > 0 for one in mine)
        text = f"{TITLES[name]}: seeds whose held-out mean reward rises with the 95% interval above 0"
        claims.append(claim(text, passed, "seeds", at_least=given.seeds))
        for end in ("start", "end"):
            mean = fmean(one[end] for one in mine)
            claims.append(claim(f"{TITLES[name]}: mean held-out reward at the {end}", mean))
    return finish("environments", {"results": results}, claims, given.out, seeds=range(given.seeds))


if __name__ == "__main__":
    sys.exit(main())
