"""SmolLM2-135M, a real model with tied weights, served by the real SGLang in fp32."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rocstar.engine.group import run_group
from rocstar.engine.inference.base import Generation, Sampling
from rocstar.engine.inference.sglang.exchanges import CPU_ARGS
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.sglang.weights import DiskWeights
from rocstar.engine.testing import check_trajectory
from rocstar.engine.types import Failed, Task
from rocstar.train.agent import make_agent, open_sandbox
from rocstar.train.config import load_recipe
from rocstar.train.model_io import load_tokenizer
from rocstar.train.preflight import chat_format

pytestmark = pytest.mark.asyncio(loop_scope="session")
ROOT = Path(__file__).parents[2]
T = 0.7
MEAN_BOUND = 1e-4
TASKS = [
    Task(id=f"sum/{k}", source="sums", question=f"What is {17 + k} + {25 * k + 4}?", answer=str(26 * k + 21))
    for k in range(4)
]


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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def replica(python: Path, smollm2: Path) -> AsyncIterator[Replica]:
    args = {**CPU_ARGS, "max-total-tokens": 16384}
    async with Replica(
        lambda port: server_command(python, smollm2, port, args),
        model=DiskWeights(smollm2),
        vocab_size=49152,
        log_path=ROOT / "runs/test-sglang/logs/smollm2.log",
        env={"OMP_NUM_THREADS": "1", "SGLANG_CPU_OMP_THREADS_BIND": os.environ.get("SGLANG_CORE", "0")},
        progress=print,
        engine_options={"hang_timeout_s": 300.0, "control_timeout_s": 300.0},
    ) as made:
        yield made


async def ask(replica: Replica, ids: list[int], name: str, n: int) -> Generation:
    return await replica.generate(
        ids,
        max_new_tokens=n,
        stop_ids=frozenset(),
        sampling=Sampling(temperature=T),
        seed=1,
        request_id=name,
        deadline=asyncio.get_running_loop().time() + 600,
    )


def distance(folder: Path, ids: list[int], got: Generation, start: int, end: int) -> torch.Tensor:
    """|log-prob - transformers'| of tokens [start, end) of an answer, under the weights in `folder`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *got.ids[:end]]])).logits[0, len(ids) + start - 1 : -1].float()
    new = torch.tensor(got.ids[start:end])[:, None]
    expected = torch.log_softmax(logits / T, -1).gather(1, new)[:, 0]
    return (torch.tensor(got.logprobs[start:end]) - expected).abs()


async def test_logprobs_and_an_update_in_flight(
    replica: Replica, smollm2: Path, other: Path, figures: Any
) -> None:
    """bf16 files into an fp32 server; both sides of the switch are those of transformers."""
    assert replica.engine.dtype == "float32"
    tokenizer = load_tokenizer(str(smollm2))
    prompts = [tokenizer.encode(f"The history of the number {k} begins") for k in range(4)]
    tasks = [asyncio.create_task(ask(replica, ids, f"lp/{k}", 64)) for k, ids in enumerate(prompts)]
    async with asyncio.timeout(300):
        while (await replica.engine.api.loads()).used_tokens < 4 * 20:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    started = time.monotonic()
    await replica.publish(1, DiskWeights(other))
    figures("smollm2", publish_disk_s=round(time.monotonic() - started, 2))
    answers = await asyncio.gather(*tasks)
    before, after = [], []
    for ids, got in zip(prompts, answers, strict=True):
        assert len(got.ids) == 64 and [version for _, _, version in got.version_spans] == [0, 1]
        cut = got.version_spans[0][1]
        before.append(distance(smollm2, ids, got, 0, cut))
        after.append(distance(other, ids, got, cut, 64))
    old, new = torch.cat(before), torch.cat(after)
    figures("smollm2", logprob_before_mean=old.mean().item(), logprob_after_mean=new.mean().item())
    figures("smollm2", logprob_max=max(old.max().item(), new.max().item()), tokens=len(old) + len(new))
    assert old.mean() < MEAN_BOUND and new.mean() < MEAN_BOUND


async def test_sixteen_trajectories(replica: Replica, smollm2: Path, figures: Any) -> None:
    """Its own template, the real sandbox. It seldom calls a tool by itself; nothing may fail."""
    recipe = load_recipe(ROOT / "recipes" / "smollm2_gsm8k.toml")
    started = time.monotonic()
    async with open_sandbox(recipe) as sandbox:
        chat = chat_format(recipe, load_tokenizer(str(smollm2)))
        agent = make_agent(recipe, replica, chat, sandbox, max_response_tokens=96, max_turns=3)
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=1.0))
        groups = await asyncio.gather(*(run_group(agent, task, size=4, seed=1, step=1) for task in TASKS))
    trajectories = [t for group in groups for t in group.trajectories]
    for trajectory in trajectories:
        check_trajectory(trajectory)
    figures(
        "smollm2_rollout",
        trajectories=len(trajectories),
        failed=sum(isinstance(t.outcome, Failed) for t in trajectories),
        tool_calls=sum(len(t.results) for t in trajectories),
        policy_tokens=sum(t.num_policy_tokens for t in trajectories),
        seconds=round(time.monotonic() - started, 1),
    )
    assert len(trajectories) == 16 and not any(isinstance(t.outcome, Failed) for t in trajectories)
