"""The fake against recordings of SGLang 0.5.23: one body plays the same exchanges and compares.

Recorded by `make test-sglang SGLANG_RECORD=1` from the real server, without a GPU.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.inference.base import StopReason
from rocstar.engine.inference.sglang.checksums import expected_checksums, matching_dtype
from rocstar.engine.inference.sglang.requests import LiveRequest, StreamedReply
from rocstar.engine.inference.weights import DiskWeights
from tests.fakes.sglang.exchanges import CAPACITY, LONG, Exchange, play, write_models
from tests.fakes.sglang.fake import INTERVAL
from tests.fakes.sglang.fake_server import FakeServer

RECORDINGS = Path(__file__).parents[1] / "recordings" / "sglang"
RECORDED = {
    record["name"]: record
    for path in sorted(RECORDINGS.glob("*.json"))
    for record in [json.loads(path.read_text(encoding="utf-8"))]
}
GENERATED = [name for name, r in RECORDED.items() if r["request"]["path"] == "/generate" and r["status"] == 200]
LOOSE = {"abort_running_0", "abort_running_1", "abort_retracted_0", "abort_retracted_1"}
"""Their number of tokens depends on when the abort came."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("exchanges"))


async def played(models: dict[str, Path]) -> dict[str, Exchange]:
    async with FakeServer(models["a"], capacity=CAPACITY, step_s=0.0005) as server:
        return {exchange.name: exchange for exchange in await play(server.url, models)}


def unlike(mine: Any, real: Any, at: str = "") -> list[str]:
    """Where the fake's answer has a key or a type that the real one's has not."""
    if isinstance(mine, dict) and isinstance(real, dict):
        lacking = [f"{at}.{key} is not in the real answer" for key in mine.keys() - real.keys()]
        return lacking + [
            why for key in mine.keys() & real.keys() for why in unlike(mine[key], real[key], f"{at}.{key}")
        ]
    if isinstance(mine, list) and isinstance(real, list):
        return unlike(mine[0], real[0], f"{at}[0]") if mine and real else []
    kinds = [float if type(value) is int else type(value) for value in (mine, real)]
    return [] if kinds[0] is kinds[1] else [f"{at} is {mine!r}, in the real answer {real!r}"]


def whole(response: Any) -> Any:
    """A generation as it comes at once; a stream ends with `[DONE]`."""
    if not isinstance(response, list):
        return response
    *events, end = response
    assert end == "[DONE]"
    streamed, told = StreamedReply(), []
    for event in events:
        told += streamed.add(event)
    assert told == streamed.reply()["output_ids"]
    return streamed.reply()


def facts(name: str, response: Any) -> dict[str, Any]:
    """What of a generation does not depend on the tokens drawn."""
    meta = response["meta_info"]
    finish = dict(meta["finish_reason"])
    if "matched" in finish:
        finish["matched"] = finish["matched"] == response["output_ids"][-1]
    tokens = len(response["output_ids"])
    spans = [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]
    flight = name.startswith("flight_generate")
    return {
        "finish": finish,
        "tokens": (0 < tokens < LONG) if name in LOOSE else tokens,
        "rounded": tokens % INTERVAL == 0 if "retracted" in name else None,
        "spans": [version for version, _, _ in spans] if flight or name in LOOSE else spans,
        "cover": spans[-1][2] == tokens == len(meta["output_token_logprobs"]),
        "cached": meta.get("cached_tokens", "absent"),
        "retractions": meta.get("num_retractions", "absent"),
        "prompt": meta.get("prompt_tokens", "absent"),
    }


async def test_the_fake_answers_as_the_real_server(models: dict[str, Path]) -> None:
    mine = await played(models)
    assert mine.keys() == RECORDED.keys()
    for name, real in RECORDED.items():
        fake = mine[name]
        assert fake.status == real["status"], name
        assert unlike(fake.response, real["response"]) == [], name
        if name in GENERATED:
            assert facts(name, whole(fake.response)) == facts(name, whole(real["response"])), name
            if isinstance(fake.response, list):  # of a stream every event counts
                assert len(fake.response) == len(real["response"])
                for mine_k, real_k in zip(fake.response, real["response"], strict=True):
                    assert unlike(mine_k, real_k) == [] and type(mine_k) is type(real_k)
        elif isinstance(fake.response, dict):
            for key in ("message", "success", "detail"):
                if key in fake.response and not name.startswith(("update_absent", "update_no_path")):
                    assert (
                        real["response"][key].startswith(fake.response[key])
                        if key == "message"
                        else (real["response"][key] == fake.response[key])
                    ), name
            if "error" in fake.response:
                assert real["response"]["error"]["message"].startswith(fake.response["error"]["message"]), name


@pytest.mark.parametrize("name", GENERATED)
def test_the_client_reads_every_recorded_generation(name: str) -> None:
    """Its tokens, log-probs and versions arrive, and its finish is understood."""
    recorded = RECORDED[name]
    reply, asked = (whole(recorded["response"]), recorded["request"]["json"]["sampling_params"]["max_new_tokens"])
    live = LiveRequest(rid="r")
    finish = live.take(reply, asked=asked, versions={"default": 0, "4": 4, "5": 5})
    got = live.written.result(finish)
    expected = {"abort": StopReason.aborted, "stop": StopReason.stop, "length": StopReason.length}
    kind = reply["meta_info"]["finish_reason"]["type"]
    assert finish is (StopReason.aborted if name == "generate_clipped" else expected[kind])
    assert list(got.ids) == reply["output_ids"] and len(got.logprobs) == len(got.ids)
    assert all(logprob <= 0.0 for logprob in got.logprobs)
    if name.startswith("flight_generate"):
        assert [version for _, _, version in got.version_spans] == [4, 5]


@pytest.mark.parametrize("name", ["a", "b"])
def test_recorded_checksums_are_foretold_from_the_files(models: dict[str, Path], name: str) -> None:
    """Fused and padded parameters included; a partial checkpoint shows."""
    (rank,) = RECORDED[f"checksums_{name}"]["response"]["ranks"]
    source = DiskWeights(models[name])
    assert matching_dtype(source, rank["checksums"]) == "float32"
    (partial,) = RECORDED["checksums_partial"]["response"]["ranks"]
    assert partial["checksums"] not in (
        expected_checksums(DiskWeights(models[which]), rank["checksums"], "float32") for which in "ab"
    )


def test_a_paused_schedulers_snapshot_stands_still() -> None:
    first, second = (RECORDED[f"flight_loads_{k}"]["response"]["loads"][0] for k in (1, 2))
    assert first["timestamp"] == second["timestamp"]


def test_every_event_of_a_stream_is_like_the_real_ones() -> None:
    """Each has all tokens so far, and the last one alone the versions and the finish."""
    *events, end = RECORDED["generate_stream"]["response"]
    ids = whole(RECORDED["generate_stream"]["response"])["output_ids"]
    assert end == "[DONE]" and [event["output_ids"] for event in events] == [ids[: k + 1] for k in range(6)]
    assert ["weight_versions" in event["meta_info"] for event in events] == [False] * 5 + [True]
    assert [event["meta_info"]["finish_reason"] is None for event in events] == [True] * 5 + [False]
