"""`rocstar serve` over the real SGLang: its streams, cut off and whole.

Without a seed of its own (SGLang refuses one on CPUs) two answers are the same where there is no noise.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import torch

from rocstar.engine.inference.sglang.api import Api
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.load import load_recipe, recipe_of_model
from rocstar.train.served.answering import ServeOrder, open_served
from tests.fakes.sglang.exchanges import CPU_ARGS

from ..servers.asking import COMPLETIONS, Asking, check_agent, check_completions, check_leaving, check_stop, raw
from .noted_server import NotedServer
from .serving import MEAN_BOUND, ROOT, prompt, teacher_forced

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An endpoint over SGLang, which is asked directly, too."""

    asking: Asking
    api: Api
    policy: Path

    async def running(self) -> int:
        """Requests on the server itself."""
        loads = await self.api.loads()
        return loads.running + loads.waiting


@pytest.fixture(scope="module", params=[True, False], ids=["incremental", "all so far"])
def incremental(request: pytest.FixtureRequest) -> bool:
    """Whether each event of the server holds the new tokens alone."""
    return bool(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(python: Path, policy: Path, incremental: bool) -> AsyncIterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCSTAR_SGLANG_PYTHON", str(python))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0")
        recipe = recipe_of_model(policy, ["--engine.deterministic=false"])
        args = {**CPU_ARGS, "max-total-tokens": 8192, "incremental-streaming-output": incremental}
        kind = "tests.sglang.noted_server:NotedSGLang"
        engine = recipe.engine.model_copy(update={"kind": kind, "args": args})
        order = ServeOrder(recipe=recipe.model_copy(update={"engine": engine}), out=None, max_tokens=600, drain_s=10.0)
        async with open_served(order) as (_, endpoint), aiohttp.ClientSession() as session:
            async with Api(f"http://127.0.0.1:{NotedServer.ports[-1]}") as api:
                asking = Asking(session=session, endpoint=endpoint)
                yield Served(asking=asking, api=api, policy=policy)


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


async def test_logprobs_of_what_was_sampled_and_streamed(served: Served) -> None:
    """Beside transformers, token by token."""
    tokenizer = load_tokenizer(str(served.policy))
    ids = tokenizer.encode("State the final answer: 27 + 31 + 48 =", add_special_tokens=False)
    body = raw(ids, max_tokens=60, logprobs=1) | {"temperature": 1.0}
    chunks = await served.asking.streamed(COMPLETIONS, **body)
    told = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    columns = chunks[-1]["choices"][0]["logprobs"]
    assert "".join(columns["tokens"]).startswith(told) and told
    names = {tokenizer.decode([k]): k for k in range(len(tokenizer))}
    new = [names[token] for token in columns["tokens"]]
    said = torch.tensor(columns["token_logprobs"])
    assert (said - teacher_forced(served.policy, ids, new, 1.0)).abs().mean() < MEAN_BOUND


async def test_a_client_that_goes_away_ends_it_on_the_server(served: Served) -> None:
    await check_leaving(served.asking, prompt(9), served.running, tokens=500, temperature=10.0)
    assert (await served.asking.at_once(COMPLETIONS, **raw(prompt(9), max_tokens=4)))["choices"]
