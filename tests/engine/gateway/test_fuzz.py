"""Sessions of all dialects with histories as real agents change them, and bodies that no agent sends."""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.endpoint import DIALECTS
from rocstar.engine.gateway.graph import MessageGraph
from rocstar.sandbox.http.errors import RequestError
from tests.engine.gateway.foreign_clients import RECORDINGS
from tests.engine.gateway.fuzzed_clients import fuzz
from tests.fakes.scripted_policy import ByteTokenizer

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
            request = DIALECTS[route].read(content)
            if request.messages:
                MessageGraph(chat).prompt(request)
            found["read"] += 1
        except RequestError as problem:
            found[f"refused with {problem.status}"] += 1
            found["long"] += len(json.dumps(DIALECTS[route].error(problem))) > 1000
    assert found["read"] + found["refused with 400"] == 600 and not found["long"], found
    assert min(found["read"], found["refused with 400"]) > 100, found
