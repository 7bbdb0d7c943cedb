"""`rocstar serve` over the real SGLang: its streams, cut off and whole.

Without a seed of its own (SGLang refuses one on CPUs) two answers are the same where there is no noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import torch

from rocstar.engine.inference.sglang.api import Api
from rocstar.engine.record.reading import read_folder
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.load import load_recipe, recipe_of_model
from rocstar.train.served.answering import ServeOrder, serving
from tests.fakes.sglang.exchanges import CPU_ARGS

from ..servers.asking import (
    COMPLETIONS,
    Asking,
    check_agent,
    check_completions,
    check_leaving,
    check_stop,
    raw,
)
from .noted_server import NotedServer
from .serving import MEAN_BOUND, ROOT, prompt, teacher_forced

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An endpoint over SGLang, which is asked directly, too."""

    asking: Asking
    api: Api
    policy: Path
    out: Path

    async def running(self) -> int:
        """Requests on the server itself."""
        loads = await self.api.loads()
        return loads.running + loads.waiting


@pytest.fixture(scope="module", params=[False, True], ids=["all so far", "incremental"])
def incremental(request: pytest.FixtureRequest) -> bool:
    """Whether each event of the server holds the new tokens alone."""
    return bool(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    python: Path, policy: Path, incremental: bool, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    out = tmp_path_factory.mktemp("served") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCSTAR_SGLANG_PYTHON", str(python))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0")
        recipe = recipe_of_model(policy, ["--engine.deterministic=false"])
        args = {**CPU_ARGS, "max-total-tokens": 8192, "incremental-streaming-output": incremental}
        kind = "tests.sglang.noted_server:NotedSGLang"
        engine = recipe.engine.model_copy(update={"kind": kind, "args": args})
        order = ServeOrder(
            recipe=recipe.model_copy(update={"engine": engine}), out=out, max_tokens=600, drain_s=10.0
        )
        async with serving(order) as (_, listening), aiohttp.ClientSession() as session:
            async with Api(f"http://127.0.0.1:{NotedServer.ports[-1]}") as api:
                asking = Asking(session=session, listening=listening)
                yield Served(asking=asking, api=api, policy=policy, out=out)


async def test_the_agent_is_streamed_as_it_answers_at_once(served: Served) -> None:
    recipe = load_recipe(ROOT / "recipes" / "quickstart.toml")
    questions = [task.question for task in load_all_tasks(recipe).stages[0][:6]]
    await check_agent(served.asking, questions, calls=3)


async def test_completions_stops_and_logprobs(served: Served) -> None:
    """Of a prompt of ids."""
    tokenizer = load_tokenizer(str(served.policy))
    ids = tokenizer.encode("State the final answer: 13 + 34 + 95 =", add_special_tokens=False)
    choice = await check_completions(served.asking, ids)
    await check_stop(served.asking, ids, choice["text"])
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"])


async def test_what_is_sampled_is_recorded_as_it_was_told(served: Served) -> None:
    """Token for token; every log-prob of a streamed answer is that of transformers."""
    tokenizer = load_tokenizer(str(served.policy))
    ids = prompt(7)
    chunks = await served.asking.streamed(COMPLETIONS, **raw(ids, max_tokens=60, temperature=1.0))
    told = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    async with asyncio.timeout(60):
        while not (found := _of_prompt(served.out, ids)):  # noqa: ASYNC110 - a thread writes it
            await asyncio.sleep(0.05)
    (record,) = found
    new = record["ids"][len(ids) :]
    assert tokenizer.decode(new, skip_special_tokens=False).startswith(told) and len(told) > 20
    said = torch.tensor(record["logprobs"][len(ids) :])
    assert (said - teacher_forced(served.policy, ids, new, 1.0)).abs().mean() < MEAN_BOUND


def _of_prompt(out: Path, ids: Sequence[int]) -> list[dict[str, Any]]:
    return [record for record in read_folder(out / "trajectories") if record["ids"][: len(ids)] == list(ids)]


async def test_a_client_that_goes_away_ends_it_on_the_server(served: Served) -> None:
    await check_leaving(served.asking, prompt(9), served.running, tokens=500)
    assert (await served.asking.at_once(COMPLETIONS, **raw(prompt(9), max_tokens=4)))["choices"]
