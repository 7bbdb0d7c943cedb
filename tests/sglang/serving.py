"""What the tests against the real server share: servers, requests, rollouts, and the reference."""

import asyncio
import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rocstar.engine.inference.base import Generation, Inference, Sampling
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.weights import DiskWeights
from rocstar.engine.rollout.forks import ForkRule
from rocstar.engine.rollout.group import run_group
from rocstar.engine.types import Failed, Group, Trajectory
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.tasks.chat_format import chat_format
from tests.fakes.scripted_policy import check_trajectory
from tests.fakes.sglang.exchanges import CPU_ARGS

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "runs" / "test-sglang" / "logs"
T = 0.7
MEAN_BOUND = 1e-4
"""Of |log-prob - transformers'|, both in fp32."""


def server(
    python: Path, model: Path, name: str, *, kv_tokens: int, core: str | None = None, **options: Any
) -> Replica:
    """The real server on one core; `options` are the engine's."""
    args = {**CPU_ARGS, "max-total-tokens": kv_tokens}
    bind = core or os.environ.get("SGLANG_CORE", "0")
    return Replica(
        lambda port: server_command(python, model, port, args),
        model=DiskWeights(model),
        vocab_size=AutoConfig.from_pretrained(model).vocab_size,
        log_path=LOGS / f"{name}.log",
        env={"OMP_NUM_THREADS": "1", "SGLANG_CPU_OMP_THREADS_BIND": bind},
        progress=print,
        engine_options=options,
    )


async def ask(engine: Inference, ids: Sequence[int], name: str, n: int, **changes: Any) -> Generation:
    arguments: dict[str, Any] = {"stop_ids": frozenset(), "sampling": Sampling(temperature=T), "seed": 1}
    return await engine.generate(
        list(ids),
        max_new_tokens=n,
        request_id=name,
        deadline=asyncio.get_running_loop().time() + 600,
        **(arguments | changes),
    )


def prompt(k: int, vocab_size: int = 800) -> list[int]:
    """24 ids; no two prompts begin alike."""
    return [20 + (37 * k + j * j * 11) % (vocab_size - 20) for j in range(24)]


def teacher_forced(folder: Path, ids: Sequence[int], new: Sequence[int], temperature: float) -> torch.Tensor:
    """log_softmax(logits / T) of `new` behind `ids`, by transformers in fp32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *new]])).logits[0, len(ids) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(new)[:, None])[:, 0]


def distance(folder: Path, ids: Sequence[int], got: Generation, start: int, end: int) -> torch.Tensor:
    """|log-prob - transformers'| of tokens [start, end) of an answer, under the weights in `folder`."""
    expected = teacher_forced(folder, [*ids, *got.ids[:start]], got.ids[start:end], T)
    return (torch.tensor(got.logprobs[start:end]) - expected).abs()


def off_reference(weights: Mapping[int, Path], trajectories: Sequence[Trajectory], temperature: float) -> torch.Tensor:
    """|rollout log-prob - transformers'| of every policy token, under the weights of the version it is of and
    behind all ids before it, tool results included. `weights`: the folder of each version."""
    found = []
    for version, folder in weights.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for t in trajectories:
            spans = [span for span in t.version_spans if span.version == version]
            at = torch.tensor([k for span in spans for k in range(span.start, span.end)], dtype=torch.long)
            with torch.no_grad():
                logits = model(torch.tensor([t.ids.tolist()])).logits[0, at - 1].float()
            ids_T = torch.tensor(t.ids.tolist())
            expected = torch.log_softmax(logits / temperature, -1).gather(1, ids_T[at, None])
            said = torch.tensor(t.logprobs.tolist())[at]
            found.append((said - expected[:, 0]).abs())
    off = torch.cat(found)
    assert len(off) == sum(np.isfinite(t.logprobs).sum() for t in trajectories), (
        "a token of a version not in `weights`"
    )
    return off


async def running(replica: Replica, number: int) -> None:
    """Until so many requests are in flight there."""
    async with asyncio.timeout(300):
        while replica.load().running < number:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)


async def used(replica: Replica, tokens: int, tasks: Sequence[asyncio.Task[Generation]]) -> None:
    """Until its KV pool holds so many tokens in use for these requests, all of them in flight.

    Where a policy writes its end of text, the client asks again behind it: in between it has none in use.
    """
    async with asyncio.timeout(300):
        while (await replica.engine.api.loads()).used_tokens < tokens:
            assert not any(task.done() for task in tasks), "too late: one has all its tokens"
            await asyncio.sleep(0.01)


async def roll_out(
    inference: Inference, policy: Path, seed: int, *, num_tasks: int = 4, forks: ForkRule | None = None
) -> list[Group]:
    """Four siblings of each of the quickstart's first tasks, with the real sandbox."""
    recipe = load_recipe(ROOT / "recipes" / "quickstart.toml")
    stage = recipe.stages[0]
    async with open_sandbox(recipe) as sandbox:
        chat = chat_format(recipe, load_tokenizer(str(policy)))
        agent = make_agent(
            recipe, inference, chat, sandbox, max_response_tokens=stage.max_response_tokens, max_turns=stage.max_turns
        )
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=1.0))
        tasks = load_all_tasks(recipe).stages[0][:num_tasks]
        runs = [run_group(agent, task, size=4, seed=seed, step=seed, forks=forks) for task in tasks]
        return list(await asyncio.gather(*runs))


def summary(groups: Sequence[Group]) -> dict[str, Any]:
    """What came out, every trajectory checked and each there once."""
    trajectories = [t for group in groups for t in group.trajectories]
    for trajectory in trajectories:
        check_trajectory(trajectory)
    assert len({t.key for t in trajectories}) == len(trajectories)
    return {
        "trajectories": len(trajectories),
        "failed": sum(isinstance(t.outcome, Failed) for t in trajectories),
        "turns": round(statistics.mean(len(t.turns) for t in trajectories), 2),
        "multi_turn": sum(len(t.turns) > 1 for t in trajectories),
        "tool_calls": sum(len(t.results) for t in trajectories),
        "tool_errors": sum(result.is_error for t in trajectories for result in t.results),
        "policy_tokens": sum(t.num_policy_tokens for t in trajectories),
        "solved": sum(getattr(t.outcome, "reward", 0.0) == 1.0 for t in trajectories),
    }
