"""A tiny Qwen3 that uses the tool, served by the real SGLang: everything the client promises.

One server for the whole file, in order: the last test kills it.
"""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from rocstar.engine.inference.base import Generation, InferenceError, Sampling, StopReason
from rocstar.engine.inference.sglang.replica import Replica
from rocstar.engine.inference.sglang.sender import WeightSender
from rocstar.engine.inference.weights import DiskWeights, LiveWeights
from rocstar.engine.record.json_record import check_branches
from rocstar.engine.rollout.forks import ForkRule, after_every_turn

from .serving import (
    MEAN_BOUND,
    ask,
    distance,
    off_reference,
    prompt,
    roll_out,
    running,
    server,
    summary,
    teacher_forced,
    used,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
KV_TOKENS = 65536
NUM_IN_FLIGHT = 200


@pytest.fixture(scope="session")
def other(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy after a step of 5% of noise: weights B."""
    folder = tmp_path_factory.mktemp("weights") / "b"
    shutil.copytree(policy, folder, ignore=shutil.ignore_patterns("state"))
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor * (1 + 0.05 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in load_file(policy / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def served(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy, its end of turn a token like others to the server; rollouts name it as their stop.

    Behind prompts of random ids it would end again and again, each time after one token.
    """
    folder = tmp_path_factory.mktemp("served") / "a"
    shutil.copytree(policy, folder, ignore=shutil.ignore_patterns("state"))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((folder / name).read_text())
        named = {"eos_token_id": 0, "eos_token": "<|endoftext|>"}
        settings |= {key: value for key, value in named.items() if key in settings}
        (folder / name).write_text(json.dumps(settings))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replica(python: Path, served: Path, figures: Any) -> AsyncIterator[Replica]:
    started = time.monotonic()
    async with server(python, served, "tiny", kv_tokens=KV_TOKENS, broadcast="gloo", hang_timeout_s=120.0) as made:
        figures("tiny", start_s=round(time.monotonic() - started, 1))
        yield made


async def test_logprobs_are_those_of_transformers(replica: Replica, policy: Path, figures: Any) -> None:
    answers = await asyncio.gather(*(ask(replica, prompt(k), f"lp/{k}", 200) for k in range(4)))
    off = torch.cat([distance(policy, prompt(k), a, 0, 200) for k, a in enumerate(answers)])
    figures("tiny", logprob_mean=off.mean().item(), logprob_max=off.max().item(), logprob_tokens=len(off))
    assert off.mean() < MEAN_BOUND
    greedy = await ask(replica, prompt(9), "lp/greedy", 50, sampling=Sampling(temperature=0.0))
    again = await ask(replica, [*prompt(9), *greedy.ids, 31, 32, 33], "lp/greedy", 4)
    assert (greedy.cached_tokens, again.cached_tokens) == (0, 24 + 50 - 1), "the next turn reuses the prefix"
    raw = teacher_forced(policy, prompt(9), greedy.ids, 1.0)
    assert (torch.tensor(greedy.logprobs) - raw).abs().mean() < MEAN_BOUND, "greedy reports those of T = 1"


async def in_flight(replica: Replica, name: str, first: int) -> list[asyncio.Task[Generation]]:
    """Eight requests of 300 tokens, running."""
    tasks = [asyncio.create_task(ask(replica, prompt(first + k), f"{name}/{k}", 300)) for k in range(8)]
    await used(replica, 8 * 24, tasks)
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
    assert wrong.mean() > 20 * MEAN_BOUND, "the two weights cannot be told apart: the test proves nothing"


async def test_a_publish_with_200_requests_in_flight_discards_no_token(
    replica: Replica, policy: Path, other: Path, figures: Any
) -> None:
    """Every request has all its tokens, some of each version; none was aborted, or written twice."""
    n = 160
    tasks = [asyncio.create_task(ask(replica, prompt(1000 + k), f"many/{k}", n)) for k in range(NUM_IN_FLIGHT)]
    await used(replica, NUM_IN_FLIGHT * 24, tasks)
    assert not any(task.done() for task in tasks)
    started = time.monotonic()
    await replica.publish(2, DiskWeights(policy))
    took = time.monotonic() - started
    answers = await asyncio.gather(*tasks)
    mixed = [got for got in answers if [v for _, _, v in got.version_spans] == [1, 2]]
    figures(
        "tiny_200_in_flight",
        publish_s=round(took, 2),
        tokens=sum(len(got.ids) for got in answers),
        before=sum(got.version_spans[0][1] for got in mixed),
        of_both_versions=len(mixed),
    )
    assert [(len(got.ids), got.finish) for got in answers] == [(n, StopReason.length)] * NUM_IN_FLIGHT
    assert all([v for _, _, v in got.version_spans] in ([1, 2], [2]) for got in answers), "all were in flight"
    assert len(mixed) >= NUM_IN_FLIGHT // 2
    for k, got in enumerate(answers[::40]):
        for start, end, version in got.version_spans:
            weights = {1: other, 2: policy}[version]
            assert distance(weights, prompt(1000 + 40 * k), got, start, end).mean() < MEAN_BOUND
    await replica.publish(3, DiskWeights(other))


async def test_a_broadcast_in_flight_loses_no_token(replica: Replica, policy: Path, other: Path, figures: Any) -> None:
    tasks = await in_flight(replica, "cast", 200)
    started = time.monotonic()
    live = LiveWeights(load_file(policy / "model.safetensors"))
    async with WeightSender([replica.engine], backend="gloo", bucket_bytes=200_000, timeout_s=60) as sender:
        assert await sender.send(4, live) == [None]
        joined = time.monotonic() - started
        answers = await asyncio.gather(*tasks)
        again = time.monotonic()
        assert await sender.send(5, LiveWeights(load_file(other / "model.safetensors"))) == [None]
        figures("tiny", broadcast_first_s=round(joined, 3), broadcast_next_s=round(time.monotonic() - again, 3))
    check_flight(answers, 3, 4)
    cut = answers[0].version_spans[0][1]
    assert distance(other, prompt(200), answers[0], 0, cut).mean() < MEAN_BOUND
    assert distance(policy, prompt(200), answers[0], cut, 300).mean() < MEAN_BOUND
    await replica.publish(6, DiskWeights(policy))


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


async def test_abort_pause_and_continue(replica: Replica, policy: Path, figures: Any) -> None:
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
    still = await engine.api.loads()
    await asyncio.sleep(0.5)
    assert (await engine.api.loads()).taken_at == still.taken_at, "the scheduler goes on in the pause"
    assert not waiting.done() and not any(tasks[k].done() for k in (0, 3, 4, 5, 6, 7))
    await engine.api.post("/continue_generation", {})
    engine.paused = False
    rest = await ask(replica, [*prompt(301), *got.ids], "ab/1", 300 - len(got.ids))
    assert len(got.ids) + len(rest.ids) == 300
    for k in (0, 3, 4, 5, 6, 7):
        assert (len((await tasks[k]).ids), (await tasks[k]).finish) == (300, StopReason.length)
    assert distance(policy, prompt(300), await tasks[0], 0, 300).mean() < MEAN_BOUND
    behind = [*prompt(301), *got.ids]
    assert distance(policy, behind, rest, 0, len(rest.ids)).mean() < MEAN_BOUND
    assert len((await waiting).ids) == 5
    figures("tiny", aborted_running_tokens=len(got.ids), aborted_retracted_tokens=len(retracted.ids))


async def test_sixteen_trajectories_with_the_real_tool(
    replica: Replica, policy: Path, other: Path, figures: Any
) -> None:
    """One of them with a publish in the middle: no trajectory fails, versions change within."""
    started = time.monotonic()
    groups = await roll_out(replica, policy, seed=1)
    found = summary(groups)
    took = round(time.monotonic() - started, 2)
    off = off_reference({6: policy}, [t for g in groups for t in g.trajectories], 1.0)
    figures("tiny_rollout", **found, seconds=took, logprob_mean=off.mean().item(), logprob_max=off.max().item())
    assert found["trajectories"] == 16 and found["failed"] == 0
    assert found["tool_calls"] >= 16 and found["multi_turn"] >= 8
    assert off.mean() < MEAN_BOUND, "log-probs over turns, tool results and reused KV"

    rolling = asyncio.create_task(roll_out(replica, policy, seed=2))
    await running(replica, 8)
    await replica.publish(7, DiskWeights(other))
    groups = await rolling
    versions = [{s.version for s in t.version_spans} for g in groups for t in g.trajectories]
    off = off_reference({6: policy, 7: other}, [t for g in groups for t in g.trajectories], 1.0)
    mixed = sum(v == {6, 7} for v in versions)
    figures("tiny_rollout_publish", **summary(groups), mixed=mixed, logprob_mean=off.mean().item())
    assert summary(groups)["failed"] == 0 and mixed > 4
    assert off.mean() < MEAN_BOUND, "each token under the weights of its own version"
    await replica.publish(8, DiskWeights(policy))


async def test_branches_have_the_log_probs_of_their_paths(replica: Replica, policy: Path, figures: Any) -> None:
    rule = ForkRule(chooses=after_every_turn, width=3)
    groups = await roll_out(replica, policy, seed=3, forks=rule)
    for group in groups:
        check_branches(group.trajectories)
    found = [t for group in groups for t in group.trajectories]
    branches = [t for t in found if t.fork is not None]
    off = off_reference({replica.engine.version: policy}, found, 1.0)
    figures("tiny_forks", **summary(groups), branches=len(branches), logprob_mean=off.mean().item())
    assert summary(groups)["failed"] == 0 and len(branches) >= 16
    assert len({tuple(t.ids) for t in branches}) > len(branches) / 2, "streams of their own"
    assert off.mean() < MEAN_BOUND


async def test_a_killed_server_comes_back_with_the_version_that_it_served(
    replica: Replica, policy: Path, figures: Any
) -> None:
    """The trajectories of a rollout go on on another one: see test_faults.py."""
    task = asyncio.create_task(ask(replica, prompt(399), "lost", 300))
    await running(replica, 1)
    assert replica._server is not None
    children = Path(f"/proc/{replica._server.pid}/task/{replica._server.pid}/children")
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)  # noqa: ASYNC240
    with pytest.raises(InferenceError, match="replica_lost"):
        await task
    started = time.monotonic()
    await replica.wait_ready(asyncio.get_running_loop().time() + 600)
    figures("tiny_killed", restart_s=round(time.monotonic() - started, 1))
    again = await ask(replica, prompt(400), "back", 50)
    assert again.version_spans == ((0, 50, 8),)
    assert distance(policy, prompt(400), again, 0, 50).mean() < MEAN_BOUND
