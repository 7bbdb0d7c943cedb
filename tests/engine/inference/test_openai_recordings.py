"""Answers of the real vLLM, SGLang and llama.cpp to /v1/completions, read; and the stand-in beside them.

Recorded by `make test-servers SERVERS_RECORD=1`, without a GPU.
"""

import json
import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.engine.inference.base import StopReason
from rocstar.engine.inference.events import DONE
from rocstar.engine.inference.openai_formats import (
    EndpointFormat,
    StreamedChoice,
    build_request,
    detect_format,
    ids_of,
    parse_response,
)
from tests.fakes.openai_endpoint import STOP, TOKENIZER, Endpoint

RECORDINGS = Path(__file__).parents[1] / "recordings" / "completions"
FORMS = {"vllm": EndpointFormat.SENT_IDS, "sglang": EndpointFormat.SENT_IDS, "llamacpp": EndpointFormat.SPELLED_IDS}
NUM_ASKED = 6
Exchanges = dict[str, dict[str, Any]]


class Spelling:
    """Stands for the tokenizer of the model that was served: it knows what the recorded ids spell."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._texts: dict[int, str] = {}
        for exchange in exchanges.values():
            for choice in _choices(exchange):
                for token in (choice.get("logprobs") or {}).get("content", []):
                    self._texts[token["id"]] = token["token"]

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        raise AssertionError(f"{text!r} is encoded again")

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(self._texts.get(k, "") for k in ids)


def _events(exchange: dict[str, Any]) -> list[Any]:
    told = exchange["response"]
    return [one for one in told if one != DONE.decode()] if isinstance(told, list) else [told]


def _choices(exchange: dict[str, Any]) -> list[dict[str, Any]]:
    return [choice for event in _events(exchange) for choice in event.get("choices", [])]


@pytest.fixture(params=sorted(FORMS))
def recorded(request: pytest.FixtureRequest) -> tuple[EndpointFormat, Exchanges]:
    lines = (RECORDINGS / f"{request.param}.jsonl").read_text(encoding="utf-8").splitlines()
    return FORMS[request.param], {one["name"]: one for one in map(json.loads, lines)}


@pytest.mark.parametrize("server", sorted(FORMS))
def test_a_recording_does_not_tell_where_its_server_lay(server: str) -> None:
    assert "/site-packages" not in (RECORDINGS / f"{server}.jsonl").read_text(encoding="utf-8")


def _read(form: EndpointFormat, exchanges: Exchanges, name: str) -> tuple[StreamedChoice, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    ids = ids_of(form, Spelling(exchanges), with_logprobs=True)
    choice = StreamedChoice(ids, heard=lambda place, token, _: told.append((place, token)), most=99)
    for event in _events(exchanges[name]):
        choice.add(event)
    return choice, told


@pytest.mark.parametrize("name", ["at_once", "streamed", "streamed_with_usage"])
def test_what_was_cut_off_is_read(recorded: tuple[EndpointFormat, Exchanges], name: str) -> None:
    """As many ids as were asked for, each with its log-prob, and told as they came."""
    form, exchanges = recorded
    choice, told = _read(form, exchanges, name)
    scored, finish = parse_response(form, choice, NUM_ASKED, frozenset({2}))
    assert len(scored) == NUM_ASKED and finish is StopReason.length
    assert told == [(k, token) for k, (token, _) in enumerate(scored)]
    assert all(-20 < logprob <= 0 for _, logprob in scored)
    if name == "at_once":
        assert detect_format(_choices(exchanges[name])[0]) is form
    else:
        assert len(_choices(exchanges[name])) > 1 and exchanges[name]["response"][-1] == "[DONE]"
    if name != "streamed":
        assert choice.counted == NUM_ASKED


@pytest.mark.parametrize("name", ["ended", "ended_streamed"])
def test_what_ended_has_its_stop_token(recorded: tuple[EndpointFormat, Exchanges], name: str) -> None:
    """Of vLLM and SGLang the id that stopped it, of llama.cpp the end of the turn, with its log-prob."""
    form, exchanges = recorded
    stops = frozenset(exchanges[name]["request"].get("stop_token_ids", [2]))
    choice, _ = _read(form, exchanges, name)
    scored, finish = parse_response(form, choice, 60, stops)
    assert finish is StopReason.stop and scored[-1][0] in stops
    assert not any(token in stops for token, _ in scored[:-1])
    assert not any(math.isnan(logprob) for _, logprob in scored)


def test_what_is_refused(recorded: tuple[EndpointFormat, Exchanges]) -> None:
    """With a status, before a stream begins, and nothing of it is a choice."""
    _, exchanges = recorded
    for name in ("too_long", "bad_field"):
        assert 400 <= exchanges[name]["status"] < 500 and not _choices(exchanges[name]), name


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_stand_in_says_nothing_that_they_do_not(
    recorded: tuple[EndpointFormat, Exchanges], is_streamed: bool
) -> None:
    """Its fields are among theirs; the piece with the reason of a stream's end has ids if theirs has."""
    form, exchanges = recorded
    server = Endpoint(with_ids=form is EndpointFormat.SENT_IDS, spells=form is EndpointFormat.SPELLED_IDS)
    fields = build_request(form, [30], frozenset({STOP}), TOKENIZER, {})
    body = {**fields, "model": "m", "max_tokens": 3, "stream": is_streamed}
    async with server.serve() as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/completions", json=body) as answer:
            text = await answer.text()
    payloads = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert not is_streamed or payloads.pop() == DONE.decode()
    ours = [json.loads(one) for one in payloads]
    theirs = exchanges["streamed" if is_streamed else "at_once"]
    assert _fields(ours) <= _fields(_events(theirs))
    if is_streamed:
        ends = [
            [bool(event["choices"][0].get(_ids(form))) for event in all_of if event["choices"]][-1:]
            for all_of in (ours, _events(theirs))
        ]
        assert ends[0] == ends[1]


def _ids(form: EndpointFormat) -> str:
    return "token_ids" if form is EndpointFormat.SENT_IDS else "logprobs"


def _fields(value: Any, path: str = "") -> set[str]:
    """Paths of all fields."""
    match value:
        case dict():
            return {p for key, inner in value.items() for p in {f"{path}.{key}"} | _fields(inner, f"{path}.{key}")}
        case list():
            return {p for inner in value for p in _fields(inner, path)}
        case _:
            return set()
