"""Where checksums cannot be foretold: garbage that a server calls a success reaches nobody."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.canary import NUM_TOKENS, Canary
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.weights import DiskWeights
from tests.fakes.asking import ask
from tests.fakes.sglang.fake_model import VOCAB, write_tiny_model
from tests.fakes.sglang.fake_process import InProcess
from tests.fakes.sglang.fake_server import FakeServer

Models = dict[str, Path]


class Learner:
    """Its weights are those of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, 0

    def greedy(self, prompt: list[int], num: int) -> tuple[list[int], list[float]]:
        self.asked += 1
        model: Any = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        ids, logprobs = list(prompt), []
        for _ in range(num):
            with torch.no_grad():
                best = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1).max(-1)
            ids.append(int(best.indices))
            logprobs.append(float(best.values))
        return ids[len(prompt) :], logprobs


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("canary")
    return {name: write_tiny_model(folder / name, seed=k, scale=0.1) for k, name in enumerate("ab")}


@pytest.fixture
def learner(models: Models) -> Learner:
    return Learner(models["b"])


@pytest.fixture
def canary() -> Canary:
    return Canary(prompt=[5, 6, 7], tolerance=1e-3)


@pytest_asyncio.fixture
async def replica(models: Models, canary: Canary, tmp_path: Path) -> AsyncIterator[Replica]:
    def on_start(server: FakeServer) -> None:
        server.faults.other_hash = True

    async with Replica(
        lambda port: server_command("python", models["a"], port, {}),
        model=DiskWeights(models["a"]),
        vocab_size=VOCAB,
        log_path=tmp_path / "log",
        engine_options={"watch_every_s": 0.05},
        canary=canary,
        launcher=InProcess(on_start, policy=True),
    ) as made:
        assert made.engine.dtype is None, "no checksum can be foretold"
        yield made


async def test_what_the_learner_says_is_served(
    replica: Replica, canary: Canary, learner: Learner, models: Models
) -> None:
    canary.expect(1, learner.greedy(canary.prompt, NUM_TOKENS))
    await replica.publish(1, DiskWeights(models["b"]))
    assert (await ask(replica, [5, 6], "g/0", 4)).version_spans == ((0, 4, 1),) and learner.asked == 1


async def test_garbage_that_says_200_reaches_nobody(
    replica: Replica, canary: Canary, learner: Learner, models: Models, until: Any
) -> None:
    """Neither a new request nor one that was in flight gets a token of it; the next publish mends it."""
    running = asyncio.create_task(ask(replica, [5, 6], "g/0", 120))
    await until(lambda: replica.load().running)
    (process,) = cast(Any, replica)._launcher.running
    process.server.faults.garbage = True
    canary.expect(1, learner.greedy(canary.prompt, NUM_TOKENS))
    with pytest.raises(InferenceError, match="canary has log-prob"):
        await replica.publish(1, DiskWeights(models["b"]))
    with pytest.raises(InferenceError, match="wrong_weights"):
        await running
    with pytest.raises(InferenceError, match="wrong_weights"):
        await ask(replica, [5, 6], "g/1", 4)
    process.server.faults.garbage = False
    canary.expect(2, learner.greedy(canary.prompt, NUM_TOKENS))
    await replica.publish(2, DiskWeights(models["b"]))
    assert (await ask(replica, [5, 6], "g/2", 4)).version_spans == ((0, 4, 2),)


async def test_an_answer_waits_for_the_canary(
    replica: Replica, canary: Canary, learner: Learner, models: Models
) -> None:
    """It ended under weights that were on trial then, and is given to nobody once they have failed."""
    with replica.on_trial():
        answer = asyncio.create_task(ask(replica, [5, 6], "g/0", 2))
        while "g/0" not in replica.engine._live:  # noqa: ASYNC110 - until it was asked
            await asyncio.sleep(0)
        await replica.engine.drained(60.0)
        assert replica.engine._idle.is_set()
        await asyncio.sleep(0)
        assert not answer.done()
        canary.expect(
            0, learner.greedy(canary.prompt, NUM_TOKENS)
        )  # the learner holds b, the server serves a as version 0
        with pytest.raises(InferenceError, match=r"more than 0\.001 apart"):
            await replica.try_out()
    with pytest.raises(InferenceError, match="the canary failed"):
        await answer


async def test_a_server_that_comes_back_is_compared_with_what_was_said_then(
    replica: Replica, canary: Canary, learner: Learner, models: Models
) -> None:
    canary.expect(1, learner.greedy(canary.prompt, NUM_TOKENS))
    await replica.publish(1, DiskWeights(models["b"]))
    learner.folder = models["a"]  # it has learned on
    assert await replica.restart() is replica
    assert (await ask(replica, [5, 6], "g/0", 4)).version_spans == ((0, 4, 1),) and learner.asked == 1
