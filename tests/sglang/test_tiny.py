"""A tiny Qwen3 that uses the tool, served by the real SGLang: everything the client promises.

One server for the whole file, in order: the last test kills it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rocstar.engine.group import run_group
from rocstar.engine.inference.base import Generation, Inference, InferenceError, KvLoad, Sampling, StopReason
from rocstar.engine.inference.embedded import EmbeddedEngine
from rocstar.engine.inference.sglang.exchanges import CPU_ARGS
from rocstar.engine.inference.sglang.publish import Publisher
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.sglang.weights import DiskWeights, LiveWeights
from rocstar.engine.testing import check_trajectory
from rocstar.engine.types import Failed, Group
from rocstar.train.agent import make_agent, open_sandbox
from rocstar.train.config import load_recipe
from rocstar.train.model_io import load_tokenizer
from rocstar.train.preflight import chat_format, load_all_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")
ROOT = Path(__file__).parents[2]
T = 0.7
MEAN_BOUND = 1e-4
KV_TOKENS = 8192


@pytest.fixture(scope="session")
def other(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy after a step of 2% of noise: weights B."""
    folder = tmp_path_factory.mktemp("weights") / "b"
    shutil.copytree(policy, folder, ignore=shutil.ignore_patterns("state"))
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor * (1 + 0.02 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in load_file(policy / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def replica(python: Path, policy: Path, figures: Any) -> AsyncIterator[Replica]:
    args = {**CPU_ARGS, "max-total-tokens": KV_TOKENS}
    started = time.monotonic()
    async with Replica(
        lambda port: server_command(python, policy, port, args),
        model=DiskWeights(policy),
        vocab_size=AutoModelForCausalLM.from_pretrained(policy).config.vocab_size,
        log_path=ROOT / "runs/test-sglang/logs/tiny.log",
        env={"OMP_NUM_THREADS": "1", "SGLANG_CPU_OMP_THREADS_BIND": os.environ.get("SGLANG_CORE", "0")},
        progress=print,
        engine_options={"broadcast": "gloo", "hang_timeout_s": 120.0},
    ) as made:
        figures("tiny", start_s=round(time.monotonic() - started, 1))
        yield made


async def ask(engine: Inference, ids: Sequence[int], name: str, n: int, **changes: Any) -> Generation:
    arguments: dict[str, Any] = {"stop_ids": frozenset(), "sampling": Sampling(temperature=T), "seed": 1}
    return await engine.generate(
        list(ids),
        max_new_tokens=n,
        request_id=name,
        deadline=asyncio.get_running_loop().time() + 300,
        **(arguments | changes),
    )


def prompt(k: int, vocab_size: int = 800) -> list[int]:
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


async def test_logprobs_are_those_of_transformers(replica: Replica, policy: Path, figures: Any) -> None:
    answers = await asyncio.gather(*(ask(replica, prompt(k), f"lp/{k}", 200) for k in range(4)))
    off = torch.cat([distance(policy, prompt(k), a, 0, 200) for k, a in enumerate(answers)])
    figures("tiny", logprob_mean=off.mean().item(), logprob_max=off.max().item(), logprob_tokens=len(off))
    assert off.mean() < MEAN_BOUND
    greedy = await ask(replica, prompt(9), "lp/greedy", 50, sampling=Sampling(temperature=0.0))
    raw = teacher_forced(policy, prompt(9), greedy.ids, 1.0)
    assert (torch.tensor(greedy.logprobs) - raw).abs().mean() < MEAN_BOUND, "greedy reports those of T = 1"


async def test_next_turn_reuses_the_prefix(replica: Replica) -> None:
    first = await ask(replica, prompt(50), "pre/0", 40)
    second = await ask(replica, [*prompt(50), *first.ids, 31, 32, 33], "pre/0", 4)
    assert (first.cached_tokens, second.cached_tokens) == (0, 24 + 40 - 1)


async def running(replica: Replica, number: int) -> None:
    async with asyncio.timeout(120):
        while replica.load().running < number:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)


async def in_flight(replica: Replica, name: str, first: int) -> list[asyncio.Task[Generation]]:
    """Eight requests of 300 tokens, running."""
    tasks = [asyncio.create_task(ask(replica, prompt(first + k), f"{name}/{k}", 300)) for k in range(8)]
    async with asyncio.timeout(120):
        while (await replica.engine.api.loads()).used_tokens < 8 * 60:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    return tasks


def check_flight(answers: Sequence[Generation], before: int, after: int) -> None:
    for got in answers:
        assert (len(got.ids), got.finish) == (300, StopReason.length)
        assert [version for _, _, version in got.version_spans] == [before, after]


async def test_a_disk_update_in_flight_loses_no_token(
    replica: Replica, policy: Path, other: Path, figures: Any
) -> None:
    """And every log-prob is that of the weights its token is labelled with."""
    tasks = await in_flight(replica, "disk", 100)
    started = time.monotonic()
    await replica.publish(1, DiskWeights(other))
    figures("tiny", publish_disk_s=round(time.monotonic() - started, 3))
    answers = await asyncio.gather(*tasks)
    check_flight(answers, 0, 1)
    old, new = [], []
    for k, got in enumerate(answers[:4]):
        cut = got.version_spans[0][1]
        old.append(distance(policy, prompt(100 + k), got, 0, cut))
        new.append(distance(other, prompt(100 + k), got, cut, 300))
    before, after = torch.cat(old), torch.cat(new)
    figures("tiny", flight_before_mean=before.mean().item(), flight_after_mean=after.mean().item())
    figures("tiny", flight_max=max(before.max().item(), after.max().item()))
    assert before.mean() < MEAN_BOUND and after.mean() < MEAN_BOUND
    wrong = distance(policy, prompt(100), answers[0], answers[0].version_spans[0][1], 300)
    assert wrong.mean() > 100 * MEAN_BOUND, "the two weights cannot be told apart: the test proves nothing"


async def test_a_broadcast_in_flight_loses_no_token(
    replica: Replica, policy: Path, other: Path, figures: Any
) -> None:
    tasks = await in_flight(replica, "cast", 200)
    started = time.monotonic()
    live = LiveWeights(load_file(policy / "model.safetensors"))
    async with Publisher([replica.engine], backend="gloo", bucket_bytes=200_000, timeout_s=60) as publisher:
        assert await publisher.publish(2, live) == [None]
        joined = time.monotonic() - started
        answers = await asyncio.gather(*tasks)
        again = time.monotonic()
        assert await publisher.publish(3, LiveWeights(load_file(other / "model.safetensors"))) == [None]
        figures(
            "tiny", broadcast_first_s=round(joined, 3), broadcast_next_s=round(time.monotonic() - again, 3)
        )
    check_flight(answers, 1, 2)
    cut = answers[0].version_spans[0][1]
    assert distance(other, prompt(200), answers[0], 0, cut).mean() < MEAN_BOUND
    assert distance(policy, prompt(200), answers[0], cut, 300).mean() < MEAN_BOUND
    await replica.publish(4, DiskWeights(policy))


async def test_a_source_that_is_not_the_models_is_refused_and_the_server_lives(
    replica: Replica, other: Path, tmp_path: Path
) -> None:
    """Sent, the first would kill the server and the second would be answered 200."""
    tensors = load_file(other / "model.safetensors")
    name = "model.norm.weight"
    for k, change in enumerate(({name: tensors[name][:4].clone()}, {"no.such": torch.zeros(2)})):
        folder = tmp_path / str(k)
        folder.mkdir()
        save_file({**tensors, **change}, folder / "model.safetensors")
        with pytest.raises(ValueError, match=r"norm|no\.such"):
            await replica.publish(9, DiskWeights(folder))
    assert len((await ask(replica, prompt(1), "alive", 4)).ids) == 4


async def test_abort_pause_and_continue(replica: Replica, figures: Any) -> None:
    """Aborted tokens are kept and continued from; a pause loses nothing; an abort in it is not lost."""
    engine = replica.engine
    tasks = await in_flight(replica, "ab", 300)
    await replica.abort("ab/1")
    got = await tasks[1]
    assert got.finish is StopReason.aborted and 0 < len(got.ids) < 300
    assert len(got.logprobs) == len(got.ids)
    engine.paused = True
    await engine.api.post("/pause_generation", {"mode": "retract"})
    await replica.abort("ab/2")
    retracted = await tasks[2]
    assert retracted.finish is StopReason.aborted
    waiting = asyncio.create_task(ask(replica, prompt(340), "ab/wait", 5))
    await asyncio.sleep(0.3)
    assert not waiting.done() and replica.load().running == 0
    await engine.api.post("/continue_generation", {})
    engine.paused = False
    rest = await ask(replica, [*prompt(301), *got.ids], "ab/1", 300 - len(got.ids))
    assert len(got.ids) + len(rest.ids) == 300
    for k in (0, 3, 4, 5, 6, 7):
        assert (len((await tasks[k]).ids), (await tasks[k]).finish) == (300, StopReason.length)
    assert len((await waiting).ids) == 5
    figures("tiny", aborted_running_tokens=len(got.ids), aborted_retracted_tokens=len(retracted.ids))


class Elsewhere:
    """Two engines as one: a turn that one fails continues on the other from the ids there are."""

    def __init__(self, first: Inference, second: Inference) -> None:
        self.engines, self.lost = (first, second), []

    async def generate(self, ids: list[int], *, max_new_tokens: int, **request: Any) -> Generation:
        try:
            return await self.engines[0].generate(ids, max_new_tokens=max_new_tokens, **request)
        except InferenceError as error:
            if not error.retryable:
                raise
            self.lost.append((request["request_id"], len(ids), error.kind))
            return await self.engines[1].generate(ids, max_new_tokens=max_new_tokens, **request)

    def load(self) -> KvLoad:
        return self.engines[0].load()

    async def publish(self, version: int, source: Any = None) -> None:
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        raise NotImplementedError

    def join(self, request_ids: Sequence[str]) -> None:
        pass

    def release(self, request_id: str) -> None:
        for engine in self.engines:
            engine.release(request_id)


async def roll_out(inference: Inference, policy: Path, seed: int) -> list[Group]:
    """Sixteen trajectories, four siblings of four tasks, with the real sandbox."""
    recipe = load_recipe(ROOT / "recipes" / "quickstart.toml")
    stage = recipe.stages[0]
    async with open_sandbox(recipe) as sandbox:
        chat = chat_format(recipe, load_tokenizer(str(policy)))
        agent = make_agent(
            recipe,
            inference,
            chat,
            sandbox,
            max_response_tokens=stage.max_response_tokens,
            max_turns=stage.max_turns,
        )
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=1.0))
        tasks = load_all_tasks(recipe).stages[0][:4]
        runs = [run_group(agent, task, size=4, seed=seed, step=seed) for task in tasks]
        return list(await asyncio.gather(*runs))


def summary(groups: Sequence[Group]) -> dict[str, Any]:
    trajectories = [t for group in groups for t in group.trajectories]
    for trajectory in trajectories:
        check_trajectory(trajectory)
    return {
        "trajectories": len(trajectories),
        "failed": sum(isinstance(t.outcome, Failed) for t in trajectories),
        "turns": statistics.mean(len(t.turns) for t in trajectories),
        "tool_calls": sum(len(t.results) for t in trajectories),
        "tool_errors": sum(result.is_error for t in trajectories for result in t.results),
        "policy_tokens": sum(t.num_policy_tokens for t in trajectories),
        "solved": sum(getattr(t.outcome, "reward", 0.0) == 1.0 for t in trajectories),
    }


async def test_sixteen_trajectories_with_the_real_tool(
    replica: Replica, policy: Path, other: Path, figures: Any
) -> None:
    """One of them with a publish in the middle: no trajectory fails, versions change within."""
    started = time.monotonic()
    groups = await roll_out(replica, policy, seed=1)
    found = summary(groups)
    figures("tiny_rollout", **found, seconds=round(time.monotonic() - started, 2))
    assert found["trajectories"] == 16 and found["failed"] == 0
    assert found["tool_calls"] >= 16 and found["turns"] > 1.5

    rolling = asyncio.create_task(roll_out(replica, policy, seed=2))
    await running(replica, 12)
    await replica.publish(5, DiskWeights(other))
    groups = await rolling
    versions = [{s.version for s in t.version_spans} for g in groups for t in g.trajectories]
    figures("tiny_rollout_publish", **summary(groups), mixed=sum(v == {4, 5} for v in versions))
    assert summary(groups)["failed"] == 0 and sum(v == {4, 5} for v in versions) > 4
    await replica.publish(6, DiskWeights(policy))


async def test_a_killed_replicas_trajectories_continue_elsewhere(
    replica: Replica, policy: Path, figures: Any
) -> None:
    """On the embedded engine with the same weights, from their token prefix; then the server is back."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    with ThreadPoolExecutor(1) as thread:
        async with EmbeddedEngine(model, max_running=16, thread=thread) as embedded:
            both = Elsewhere(replica, embedded)
            rolling = asyncio.create_task(roll_out(both, policy, seed=3))
            await running(replica, 12)
            children = Path(f"/proc/{replica.server_pid}/task/{replica.server_pid}/children")
            os.kill(int(children.read_text().split()[0]), signal.SIGKILL)  # noqa: ASYNC240
            groups = await rolling
    found = summary(groups)
    keys = {t.key for group in groups for t in group.trajectories}
    figures("tiny_rollout_killed", **found, continued_turns=len(both.lost))
    assert (len(keys), found["trajectories"], found["failed"]) == (16, 16, 0)
    assert len(both.lost) >= 8 and {kind for _, _, kind in both.lost} <= {"replica_lost"}
    assert found["tool_calls"] >= 16

    started = time.monotonic()
    await replica.wait_ready(asyncio.get_running_loop().time() + 600)
    figures("tiny_rollout_killed", restart_s=round(time.monotonic() - started, 1))
    again = await ask(replica, prompt(400), "back", 50)
    assert again.version_spans == ((0, 50, 6),)
    assert distance(policy, prompt(400), again, 0, 50).mean() < MEAN_BOUND
