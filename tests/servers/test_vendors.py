"""`rocstar serve`, `eval` and `rollout` over real servers of OpenAI's protocol and exported weights.

vLLM and SGLang serve a tiny policy that calls its tool, llama.cpp SmolLM2. One server of each for the file.
"""

import asyncio
import json
import math
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from rocstar.engine.inference.base import Generation, InferenceError, Sampling, StopReason
from rocstar.engine.inference.openai import OpenAIEndpoint
from rocstar.engine.record.json_record import from_record
from rocstar.engine.types import Group
from rocstar.train.groups.teacher_scores import MOST_REQUESTS, teacher_scores
from rocstar.train.learner.model_io import load_tokenizer
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.load import load_recipe, recipe_of_model
from rocstar.train.recipe.rl_config import TeacherConfig
from rocstar.train.served.answering import ServeOrder, open_served
from tests.fakes.json_lines import read_folder
from tests.fakes.trajectories import TASK, FakeTurn, make_trajectory

from ..patience import PATIENCE_S
from .asking import Asking, check_agent, check_completions, check_leaving, check_stop, unending
from .exchanges import keep, play, version
from .vendors import CONTEXT, LLAMACPP, NAME, ROOT, VENDORS, Running, Vendor, started

pytestmark = pytest.mark.asyncio(loop_scope="session")
BOUNDS = {"vllm": 1e-4, "sglang": 1e-4, "llamacpp": 0.05}
"""Of |log-prob - transformers'| on average. llama.cpp reckons in bfloat16 with weights in bfloat16."""
HEARD = "s0/t/0"
QUESTION = "<|im_start|>user\nWhat is a river? Tell me all about it.<|im_end|>\n<|im_start|>assistant\n"
RECORDINGS = ROOT / "tests" / "engine" / "recordings" / "completions"


@pytest.fixture(scope="module", params=VENDORS, ids=[vendor.name for vendor in VENDORS])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    found: Vendor = request.param
    if not found.python:
        pytest.skip(f"{found.variable} names no interpreter")
    return found


@pytest.fixture(scope="module")
def weights(vendor: Vendor, request: pytest.FixtureRequest) -> Path:
    """The folder whose weights are served."""
    name = "smollm2" if vendor is LLAMACPP else "exported"
    found: Path = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="module")
def served(
    vendor: Vendor, weights: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the server loads: a folder whose own settings would have the likeliest token alone, or a file."""
    if vendor is LLAMACPP:
        found: Path = request.getfixturevalue("gguf")
        return found
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(weights, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"do_sample": True, "top_k": 1}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(vendor: Vendor, served: Path) -> AsyncIterator[Running]:
    async with started(vendor, served) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def endpoint(running: Running, weights: Path) -> AsyncIterator[OpenAIEndpoint]:
    rows = AutoConfig.from_pretrained(weights).vocab_size
    codec: Any = load_tokenizer(str(weights))
    async with OpenAIEndpoint(running.url, model=NAME, vocab_size=rows, codec=codec) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def asking(running: Running, weights: Path) -> AsyncIterator[Asking]:
    """`rocstar serve` over the server."""
    recipe = recipe_of_model(weights, _options(running, weights))
    order = ServeOrder(recipe=recipe, out=None, max_tokens=CONTEXT, drain_s=10.0)
    async with open_served(order) as (_, endpoint), aiohttp.ClientSession() as session:
        yield Asking(session=session, endpoint=endpoint)


def _options(running: Running, weights: Path) -> list[str]:
    template = "smollm2" if running.vendor is LLAMACPP else "compact"
    engine = {"kind": "openai", "url": running.url, "model": NAME, "deterministic": "false"}
    fields = [f"--engine.{name}={value}" for name, value in engine.items()]
    return [*fields, f"--model.path={weights}", f"--model.template={template}"]


async def ask(endpoint: OpenAIEndpoint, ids: list[int], name: str = "s0/t/9", **changes: Any) -> Generation:
    arguments: dict[str, Any] = {
        "max_new_tokens": 40,
        "stop_ids": frozenset({2}),
        "sampling": Sampling(temperature=1.0),
        "seed": 5,
        "deadline": asyncio.get_running_loop().time() + 300,
    }
    return await endpoint.generate(ids, request_id=name, **(arguments | changes))


def _prompt(weights: Path) -> list[int]:
    """Ids that the model goes on from, for more than a few tokens."""
    tokenizer = load_tokenizer(str(weights))
    is_tiny = len(tokenizer) < 1000
    text = "State the final answer: 13 + 34 + 95 =" if is_tiny else QUESTION
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


async def test_it_answers_as_recorded(running: Running, weights: Path, tmp_path: Path) -> None:
    """The exchanges that the stand-in is held against; SERVERS_RECORD=1 keeps them anew."""
    codec: Any = load_tokenizer(str(weights))
    played = await play(running, codec, _prompt(weights))
    path = RECORDINGS / f"{running.vendor.name}.jsonl"
    if os.environ.get("SERVERS_RECORD") == "1":
        keep(played, await version(running), path)
    before = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for now, kept in zip(played, before, strict=True):
        assert (now["name"], now["status"], now["type"]) == (kept["name"], kept["status"], kept["type"])
        assert shape(now["response"]) == shape(kept["response"]), now["name"]


def shape(value: Any) -> Any:
    """Names and kinds, for tokens differ from machine to machine; of a list its first and its last."""
    match value:
        case dict():
            return {key: shape(inner) for key, inner in value.items() if key != "top_logprobs"}
        case list():
            return [shape(value[0]), shape(value[-1])] if value else []
        case bool() | str() | None:
            return type(value).__name__
        case _:
            return "number"


async def test_ids_and_logprobs_are_those_of_the_exported_weights(
    endpoint: OpenAIEndpoint, vendor: Vendor, weights: Path
) -> None:
    """Beside transformers, token by token; and of another temperature none is passed on."""
    assert endpoint.form is vendor.form and endpoint.gives_logprobs
    ids = _prompt(weights)
    answers = [await ask(endpoint, ids, seed=seed) for seed in range(4)]
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
    off = []
    for got in answers:
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *got.ids]])).logits[0, len(ids) - 1 : -1].float()
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(got.ids)[:, None])[:, 0]
        off.append((torch.tensor(got.logprobs) - expected).abs())
    mean, most = torch.cat(off).mean().item(), torch.cat(off).max().item()
    print(f"\n{vendor.name}: {len(torch.cat(off))} tokens, off by {mean:.1e}, {most:.1e} at most")
    assert mean < BOUNDS[vendor.name]
    assert len({got.ids for got in answers}) > 1, "the server's own settings hold"
    cooler = await ask(endpoint, ids, sampling=Sampling(temperature=0.7))
    assert cooler.ids and all(math.isnan(logprob) for logprob in cooler.logprobs)


async def test_a_turn_is_told_as_it_is_written(endpoint: OpenAIEndpoint, weights: Path) -> None:
    told: list[tuple[int, int]] = []
    endpoint.on_tokens(HEARD, lambda place, token, _: told.append((place, token)))
    ids, greedy = _prompt(weights), Sampling(temperature=0.0)
    whole = await ask(endpoint, ids, sampling=greedy)
    streamed = await ask(endpoint, ids, HEARD, sampling=greedy)
    assert (streamed.ids, streamed.finish) == (whole.ids, whole.finish)
    assert told == list(enumerate(whole.ids))[: len(told)] and len(told) >= len(whole.ids) - 1 > 5
    sampled = await ask(endpoint, ids, HEARD, seed=11)
    assert len(sampled.logprobs) == len(sampled.ids) and not any(map(math.isnan, sampled.logprobs))


async def test_an_abort_ends_it_there_too(endpoint: OpenAIEndpoint, running: Running, weights: Path) -> None:
    told: list[int] = []
    came = asyncio.Event()

    def heard(place: int, token: int, logprob: float) -> None:
        told.append(token)
        came.set()

    endpoint.on_tokens(HEARD, heard)
    asked = ask(endpoint, _prompt(weights), HEARD, max_new_tokens=900, stop_ids=frozenset({0}))
    turn = asyncio.create_task(asked)
    await came.wait()
    await endpoint.abort(HEARD)
    got = await turn
    assert got.finish is StopReason.aborted and list(got.ids[: len(told)]) == told
    async with asyncio.timeout(PATIENCE_S):
        while await running.running():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


async def test_what_does_not_fit_is_no_end_of_the_policys(
    endpoint: OpenAIEndpoint, weights: Path, vendor: Vendor
) -> None:
    """Refused, or cut and found to be cut."""
    ids = (_prompt(weights) * CONTEXT)[: CONTEXT - 20]
    with pytest.raises(InferenceError) as caught:
        await ask(endpoint, ids, max_new_tokens=400, stop_ids=frozenset({0}))
    print(f"\n{vendor.name}: {caught.value}")
    assert caught.value.kind in ("too_long", "bad_request") and not caught.value.retryable


async def test_served_over_it_streams_are_the_answers_at_once(
    asking: Asking, vendor: Vendor, running: Running, weights: Path
) -> None:
    tasks = load_all_tasks(load_recipe(ROOT / "recipes" / "quickstart.toml")).stages[0]
    if vendor is LLAMACPP:  # nobody taught it to call a tool
        await check_agent(asking, ["What is the capital of France?"], calls=0)
    else:
        await check_agent(asking, [task.question for task in tasks[:6]], calls=3)
    ids = _prompt(weights)
    choice = await check_completions(asking, ids)
    await check_stop(asking, ids, choice["text"])
    with unending(vendor.unending):
        await check_leaving(asking, ids, running.running, tokens=vendor.longest)


async def test_evaluated_and_rolled_out(
    rocstar: Callable[..., str], vendor: Vendor, running: Running, weights: Path, tmp_path: Path
) -> None:
    """By the verbs themselves; at T = 1 every token of the policy's has its log-prob."""
    options = [*_options(running, weights), "--sft.steps=0"]
    limits = ["--eval.data.limit=3", "--eval.samples_per_task=2"]
    if vendor is LLAMACPP:
        limits.append("--stages.0.max_response_tokens=60")
    evaluated = ["eval", "quickstart", f"--out={tmp_path / 'eval'}", "--json", *limits, *options]
    told = json.loads(await asyncio.to_thread(rocstar, *evaluated))
    print(f"\n{vendor.name}: {told}")
    assert told["eval/heldout/avg@2"] >= 0.0
    few = ["--rl.tasks_per_step=2", "--rl.rollouts_per_task=4", "--rl.group_size=4", "--steps=1", *limits[2:]]
    out = tmp_path / "rollouts"
    await asyncio.to_thread(rocstar, "rollout", "quickstart", f"--out={out}", *few, *options)
    records = list(read_folder(out / "trajectories"))
    assert len(records) == 8 and all("reward" in record["outcome"] for record in records)
    for record in records:
        spans = record["version_spans"]
        policys = [record["logprobs"][k] for start, end, _ in spans for k in range(start, end)]
        assert policys and None not in policys


def _group(*prompts: list[int]) -> Group:
    """A trajectory of each prompt; all tokens but the first are the policy's."""
    found = (make_trajectory(FakeTurn(ids=p[1:]), prompt=p[:1], sibling=k) for k, p in enumerate(prompts))
    return Group(task=TASK, trajectories=tuple(found))


def _scored(weights: Path, ids: list[list[int]]) -> list[torch.Tensor]:
    """log_softmax(logits) of each id but the first, by transformers in float32."""
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
    found = []
    for prompt in map(torch.tensor, ids):
        with torch.no_grad():
            logprobs = torch.log_softmax(model(prompt[None]).logits[0, :-1].float(), -1)
        found.append(logprobs.gather(1, prompt[1:, None])[:, 0])
    return found


async def test_a_teachers_log_probs_are_those_of_transformers(running: Running, weights: Path, vendor: Vendor) -> None:
    """Of ids as they were sent: control tokens, ids that no text encodes to, prompts of several prefills and with a
    prefix in common, more at once than a teacher is asked for."""
    teacher, ids = TeacherConfig(url=running.url, model=NAME), _prompt(weights)
    rows, generator = AutoConfig.from_pretrained(weights).vocab_size, np.random.default_rng(0)
    drawn = [generator.integers(rows, size=n).tolist() for n in [CONTEXT - 7, 800, 256, 257, *range(2, 40)]]
    prompts = [[1, 2], [1, *ids, 2, 0, 2, 1], [*drawn[0][:700], *ids], *drawn]
    assert len(prompts) > MOST_REQUESTS
    if vendor is LLAMACPP:  # its answer has log-probs of what it generated alone
        with pytest.raises(TrainingStopped, match="has no log-probs of the prompt"):
            await teacher_scores(teacher, [_group(*prompts)])
        return
    group = _group(*prompts)
    found = await teacher_scores(teacher, [group])
    scores = [torch.tensor(found[str(t.key)]) for t in group.trajectories]
    off = torch.cat([(ours - theirs).abs() for ours, theirs in zip(scores, _scored(weights, prompts), strict=True)])
    print(f"\n{vendor.name}: {len(off)} tokens of prompts, off by {off.mean():.1e}, {off.max():.1e} at most")
    assert off.max() < BOUNDS[vendor.name]


async def test_what_a_teacher_has_no_room_for_is_one_error(running: Running, weights: Path, vendor: Vendor) -> None:
    prompt = (_prompt(weights) * CONTEXT)[: CONTEXT + 8]
    with pytest.raises(TrainingStopped) as stopped:
        await teacher_scores(TeacherConfig(url=running.url, model=NAME), [_group(prompt)])
    print(f"\n{vendor.name}: {stopped.value}")
    assert "it answered 400" in str(stopped.value) and str(len(prompt)) in str(stopped.value)


async def test_two_steps_learn_from_a_teacher(
    rocstar: Callable[..., str], vendor: Vendor, running: Running, weights: Path, tmp_path: Path
) -> None:
    """The policy is the teacher with noise; `distill/kl` is what transformers says of the recorded tokens."""
    if vendor is LLAMACPP:
        pytest.skip("it scores no prompt")
    student, run, generator = tmp_path / "student", tmp_path / "run", torch.Generator().manual_seed(1)
    shutil.copytree(weights, student)
    noisy = {
        name: tensor * (1 + 0.05 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
        for name, tensor in load_file(weights / "model.safetensors").items()
    }
    save_file(noisy, student / "model.safetensors", metadata={"format": "pt"})
    options = [f"--model.path={student}", "--model.template=compact", "--sft.steps=0", "--stages.0.steps=2"]
    options += ["--rl.advantage=distill", f"--teacher.url={running.url}", f"--teacher.model={NAME}"]
    options += ["--rl.tasks_per_step=4", "--rl.rollouts_per_task=4", "--rl.group_size=4"]
    options += ["--eval.data.limit=2", "--eval.samples_per_task=2"]
    await asyncio.to_thread(rocstar, "train", "quickstart", "--output-dir", str(run), *options)
    rows = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if row["phase"] == "rl"]
    records = [from_record(record) for record in read_folder(run / "trajectories")]
    first = [t for t in records if t.key.step == 1]
    scores = _scored(weights, [t.ids.tolist() for t in first])
    gaps = [score - torch.tensor(t.logprobs[1:]) for t, score in zip(first, scores, strict=True)]
    expected = -torch.cat([gap[torch.tensor(t.loss_mask()[1:])] for t, gap in zip(first, gaps, strict=True)]).mean()
    print(f"\n{vendor.name}: distill/kl {[row['distill/kl'] for row in rows]}, by transformers {expected:.6f}")
    assert len(first) == 16 and rows[0]["distill/kl"] == pytest.approx(expected.item(), abs=BOUNDS[vendor.name])
    assert expected > 20 * BOUNDS[vendor.name], "the two models cannot be told apart: the test proves nothing"
    assert rows[-1]["policy/version"] == 2, "both steps learned"
