"""Sessions of all dialects with histories as real agents change them, and bodies that no agent sends."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from random import Random
from typing import Any, cast

import aiohttp
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.endpoint import DIALECTS, open_gateway
from rocstar.engine.gateway.graph import MessageGraph
from rocstar.engine.gateway.session import AgentSession, Sessions
from rocstar.engine.inference.base import Generation
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.types import TrajectoryKey
from rocstar.sandbox.http.errors import RequestError
from tests.engine.gateway.foreign_clients import RECORDINGS
from tests.engine.gateway.fuzzed_clients import (
    CLIENTS,
    ChatClient,
    FuzzedAgent,
    check_columns,
    fuzz,
    make_agent,
    send_to,
)
from tests.fakes.scripted_policy import ByteTokenizer
from tests.fakes.tiny import scale_matrices

VALUES = [
    None, True, 0, -1, 1.5, 1e300, 10**30, "", "x", "\ud800", "\x00", [], {}, [[]], [None], {"type": "text"},
    "a" * 5000, {"type": "tool_use"}, ["a"], {"a": {"b": [1]}}, "<|im_end|>", [{}] * 3, "null",
    "[1]", {"type": 5}, '{"a":',
]  # fmt: skip
GENERATE = {"model": "m", "token_ids": [1, 2], "sampling_params": {"max_tokens": 4, "stop_token_ids": [2]}}
COMPLETE = {"model": "m", "prompt": [1, 2], "max_tokens": 3, "stop": ["x"], "logprobs": 0}


async def test_every_sample_of_fuzzed_sessions_trains_once_with_its_ids_and_log_probs() -> None:
    found = await fuzz(300)
    assert found["samples"] >= 300 and found["retries"] and found["discards"] and found["root: history_edited"]


class LoggedEngine(EmbeddedEngine):
    """A model's engine that logs what it sampled, 24 tokens at most."""

    def __init__(self, model: Any, chat: ChatFormat, thread: ThreadPoolExecutor) -> None:
        super().__init__(model, max_running=2, thread=thread)
        self.log: list[tuple[tuple[int, ...], Generation]] = []
        self.decode = chat.decode

    async def generate(self, ids: list[int], *, max_new_tokens: int, **options: Any) -> Generation:
        sample = await super().generate(ids, max_new_tokens=min(max_new_tokens, 24), **options)
        self.log.append((tuple(ids), sample))
        return sample


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_log_probs_of_fuzzed_sessions_are_those_of_the_model(client: type[ChatClient]) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    tokenizer, seed = ByteTokenizer(), CLIENTS.index(client) * 2 + 1
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=8192, num_attention_heads=2, **sizes)
    model = cast("Any", LlamaForCausalLM)._from_config(config, attn_implementation="sdpa").eval()
    scale_matrices(model)
    chat, sessions = ChatFormat(tokenizer, load_template("compact", None), []), Sessions()
    with ThreadPoolExecutor(1) as thread:
        async with (
            LoggedEngine(deepcopy(model), chat, thread) as engine,
            open_gateway(sessions, model="m", max_context=8192) as gateway,
            aiohttp.ClientSession() as http,
        ):
            session = AgentSession(make_agent(chat, engine), TrajectoryKey(seed=seed, step=0, task_id="t", sibling=0))
            secret, rng = sessions.open(session), Random(seed)
            send = send_to(http, gateway.url, secret, rng)
            await FuzzedAgent(client=client(), send=send, rng=rng, only_appends=False).run(10)
            await sessions.close(secret)
    columns = session.graph.columns()
    assert check_columns(columns, engine) > 4
    for begin, end in zip(columns.starts, [*columns.starts[1:], len(columns.ids)], strict=True):
        ids = torch.tensor(columns.ids[begin:end])
        with torch.no_grad():
            of_model = model(ids[None]).logits[0, :-1].float().log_softmax(-1).gather(1, ids[1:, None])[:, 0].tolist()
        stored = columns.logprobs[begin + 1 : end]
        assert all(a is None or abs(a - b) < 1e-5 for a, b in zip(stored, of_model, strict=True))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object in a JSON value, with each of its indices or names."""
    for key in [*(value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ())]:
        yield value, key
        yield from places(value[key])


def damaged(body: Any, rng: Random) -> Any:
    """The body with one to three values left out or of another kind."""
    body = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice([*places(body), (body, "n")])
        if rng.random() < 0.2 and key != "n":
            del holder[key]
        else:
            holder[key] = json.loads(json.dumps(rng.choice(VALUES)))
    return body


def test_damaged_bodies_are_read_or_refused_in_one_message() -> None:
    rng, found = Random(7), Counter[str]()
    chat = ChatFormat(ByteTokenizer(), load_template("compact", None), [])
    lines = [line for path in sorted(RECORDINGS.glob("*.jsonl")) for line in path.read_text().splitlines()]
    recorded = [json.loads(line) for line in lines if len(line) < 5000]
    bodies = [(one["route"], one["body"]) for one in recorded]
    bodies += [("/inference/v1/generate", GENERATE), ("/v1/completions", COMPLETE)] * 3
    for _ in range(600):
        route, body = rng.choice(bodies)
        content = json.dumps(damaged(body, rng)).encode()
        try:
            request = DIALECTS[route].read(Fields.of_body(content))
            if request.messages:
                MessageGraph(chat).prompt(request)
            found["read"] += 1
        except RequestError as problem:
            found[f"refused with {problem.status}"] += 1
            found["long"] += len(json.dumps(DIALECTS[route].error(problem))) > 1000
    assert found["read"] + found["refused with 400"] == 600 and not found["long"], found
    assert min(found["read"], found["refused with 400"]) > 100, found
