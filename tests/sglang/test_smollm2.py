"""SmolLM2-135M, a real model with tied weights, served by the real SGLang in fp32."""

import asyncio
import dataclasses
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.weights import DiskWeights
from rocstar.engine.rollout.group import run_group
from rocstar.engine.types import Task
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.agent import make_agent, open_sandbox
from rocstar.train.tasks.chat_format import chat_format

from .serving import MEAN_BOUND, ROOT, ask, distance, off_reference, server, summary, used

pytestmark = pytest.mark.asyncio(loop_scope="session")
NEW_TOKENS = 240
"""Of a request that lives through a publish, which begins with seconds of reckoning checksums."""
CALL = """<tool_call>
{"name": "execute_python_code_with_standard_io", "arguments": {"code": "print(%s)", "input": ""}}
</tool_call>"""
SHOWN = [(3, 4), (12, 30), (100, 11)]


def question(k: int) -> str:
    """Nobody taught it to call tools, but it goes on as it is shown: three sums with their calls."""
    shown = [f"Question: What is {a} + {b}?\n{CALL % f'{a} + {b}'}\n" for a, b in SHOWN]
    asked = f"Question: What is {17 + k} + {25 * k + 4}?\nWrite the tool call for the last question."
    return "\n".join(["Answer each question with a tool call.\n", *shown, asked])


TASKS = [Task(id=f"sum/{k}", source="sums", question=question(k), answer=str(26 * k + 21)) for k in range(4)]


@pytest.fixture(scope="session")
def other(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights after 0.5% of noise, in fp32."""
    folder = tmp_path_factory.mktemp("smollm2") / "b"
    shutil.copytree(smollm2, folder)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor.float() * (1 + 0.005 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in load_file(smollm2 / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replica(python: Path, smollm2: Path) -> AsyncIterator[Replica]:
    options = {"hang_timeout_s": 300.0, "control_timeout_s": 300.0}
    async with server(python, smollm2, "smollm2", kv_tokens=16384, **options) as made:
        yield made


async def test_logprobs_and_an_update_in_flight(replica: Replica, smollm2: Path, other: Path, figures: Any) -> None:
    """bf16 files into an fp32 server; both sides of the switch are those of transformers."""
    assert replica.engine.dtype == "float32"
    tokenizer = load_tokenizer(str(smollm2))
    prompts = [tokenizer.encode(f"The history of the number {k} begins") for k in range(4)]
    tasks = [asyncio.create_task(ask(replica, ids, f"lp/{k}", NEW_TOKENS)) for k, ids in enumerate(prompts)]
    await used(replica, 4 * 20, tasks)
    started = time.monotonic()
    await replica.publish(1, DiskWeights(other))
    figures("smollm2", publish_disk_s=round(time.monotonic() - started, 2))
    answers = await asyncio.gather(*tasks)
    before, after = [], []
    for ids, got in zip(prompts, answers, strict=True):
        assert len(got.ids) == NEW_TOKENS and [version for _, _, version in got.version_spans] == [0, 1]
        cut = got.version_spans[0][1]
        before.append(distance(smollm2, ids, got, 0, cut))
        after.append(distance(other, ids, got, cut, NEW_TOKENS))
    old, new = torch.cat(before), torch.cat(after)
    figures("smollm2", logprob_before_mean=old.mean().item(), logprob_after_mean=new.mean().item())
    figures("smollm2", logprob_max=max(old.max().item(), new.max().item()), tokens=len(old) + len(new))
    assert old.mean() < MEAN_BOUND and new.mean() < MEAN_BOUND


async def test_sixteen_trajectories_that_use_the_tool(replica: Replica, smollm2: Path, figures: Any) -> None:
    """Of several turns, with the real sandbox; every token's log-prob is the model's behind all before it."""
    await replica.publish(2, DiskWeights(smollm2))
    recipe = load_recipe(ROOT / "recipes" / "smollm2_gsm8k.toml")
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"template": "smollm2"})})
    started = time.monotonic()
    async with open_sandbox(recipe) as sandbox:
        chat = chat_format(recipe, load_tokenizer(str(smollm2)))
        agent = make_agent(recipe, replica, chat, sandbox, max_response_tokens=200, max_turns=3)
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=0.5))
        groups = await asyncio.gather(*(run_group(agent, task, size=4, seed=1, step=1) for task in TASKS))
    found = summary(groups)
    figures("smollm2_rollout", **found, seconds=round(time.monotonic() - started, 1))
    trajectories = [t for group in groups for t in group.trajectories]
    off = off_reference({2: smollm2}, trajectories, 0.5)
    figures("smollm2_rollout", logprob_mean=off.mean().item(), logprob_max=off.max().item())
    executed = sum(not result.is_error for t in trajectories for result in t.results)
    assert (found["trajectories"], found["failed"]) == (16, 0)
    assert found["multi_turn"] >= 4 and executed >= 4, "it calls too seldom for this to be a rollout with tools"
    assert off.mean() < MEAN_BOUND
