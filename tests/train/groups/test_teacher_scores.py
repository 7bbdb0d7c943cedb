"""Log-probs of a teacher: the request, what an answer must hold, and the way to the learner's advantages."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from rocstar.engine.types import Group, Segment, VersionSpan
from rocstar.train.groups import teacher_scores as module
from rocstar.train.groups.selection import select
from rocstar.train.groups.teacher_scores import TRIES, teacher_scores
from rocstar.train.learner.batch import pack, policy_examples
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.recipe.rl_config import RlConfig, TeacherConfig
from tests.fakes.trajectories import TASK, FakeTurn, make_trajectory

RECORDINGS = Path(__file__).parents[2] / "engine" / "recordings" / "completions"
ANOTHER_NAME = {"status": 200, "response": {"choices": [{"logprobs": None, "prompt_logprobs": [None, {"2": -1.0}]}]}}
Answer = Callable[[dict[str, Any], int], Any]


def recorded(server: str, name: str) -> dict[str, Any]:
    """An exchange with a real server: `make test-servers SERVERS_RECORD=1`."""
    lines = (RECORDINGS / f"{server}.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = {one["name"]: one for one in map(json.loads, lines)}[name]
    return found


@contextlib.asynccontextmanager
async def endpoint(answer: Answer, bodies: list[dict[str, Any]]) -> AsyncIterator[TeacherConfig]:
    """An endpoint whose `answer` returns the log-probs, a status, or an exchange; it takes the body and the request's
    number."""

    async def complete(request: web.Request) -> web.Response:
        bodies.append(await request.json() | {"key": request.headers.get("Authorization", "")})
        found = answer(bodies[-1], len(bodies))
        if isinstance(found, int):
            return web.json_response({"error": "no"}, status=found)
        if isinstance(found, dict):
            return web.json_response(found["response"], status=found["status"])
        return web.json_response({"choices": [{"logprobs": {"token_logprobs": found}}]})

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield TeacherConfig(url=f"http://{host}:{port}/v1", model="large")
    finally:
        await runner.cleanup()


def by_place(body: dict[str, Any], _: int) -> list[float | None]:
    """The log-prob of a token is minus its id; one of a generated token follows."""
    return [None, *(-float(token) for token in body["prompt"][1:]), -99.0]


def groups() -> list[Group]:
    """A group without a signal, whose second trajectory has two sequences, and one that failed."""
    turns = FakeTurn(ids=(2, 3), logprobs=(-1.5, -2.0), answer=(9, 9)), FakeTurn(ids=(4,), logprobs=(-3.0,))
    first, second, failed = (make_trajectory(*turns, sibling=k, reward=r) for k, r in enumerate((0.0, 0.0, None)))
    both = make_trajectory(FakeTurn(ids=(7,), logprobs=(-7.5,)), sibling=1, reward=0.0)
    start = len(second.ids)
    moved = (Segment(start=s.start + start, end=s.end + start, origin=s.origin) for s in both.segments)
    branched = replace(
        second,
        ids=np.concatenate([second.ids, both.ids]),
        logprobs=np.concatenate([second.logprobs, both.logprobs]),
        segments=(*second.segments, *moved),
        version_spans=(*second.version_spans, VersionSpan(start=start + 1, end=start + 2, version=0)),
        turns=(*second.turns, replace(both.turns[0], start=start + 1, end=start + 2)),
        starts=(0, start),
    )
    return [Group(task=TASK, trajectories=(first, branched, failed))]


async def test_every_loss_token_gets_the_teachers_gap_and_no_reward_is_asked() -> None:
    bodies: list[dict[str, Any]] = []
    async with endpoint(by_place, bodies) as teacher:
        found = await teacher_scores(teacher, groups())
    assert sorted(found.values()) == [[-2.0, -3.0, -4.0], [-2.0, -3.0, -4.0, -7.0]]
    assert sorted(body["prompt"] for body in bodies) == [[1, 2, 3, 9, 9, 4]] * 2 + [[1, 7]]
    plain = {"model": "large", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 1.0, "key": ""}
    assert all({**body, "prompt": 0} == plain | {"prompt": 0} for body in bodies)
    rl = RlConfig(rollouts_per_task=3, group_size=2, advantage="distill")
    selection = select(groups(), rl, seed=0, teacher=found)
    assert selection.ledger() == {"kept": 2, "failed": 1} and selection.groups_no_signal == 0
    assert selection.advantages == [(-0.5, -1.0, -1.0), (-0.5, -1.0, -1.0, 0.5)]
    (micro,) = pack(policy_examples(selection.kept, selection.advantages), tokens_per_microbatch=99)
    expected = -micro.targets_T.double() - micro.rollout_logprobs_T.double()
    assert np.allclose(micro.advantages_T.double(), expected, atol=1e-6) and len(expected) == 7


async def test_a_request_is_tried_again_and_the_key_is_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCSTAR_TEACHER_KEY", "secret")
    pauses: list[float] = []

    async def paused(pause_s: float) -> None:
        pauses.extend([pause_s] if pause_s else [])  # the server sleeps for 0 s

    monkeypatch.setattr(module.asyncio, "sleep", paused)
    bodies: list[dict[str, Any]] = []
    alone = [Group(task=TASK, trajectories=groups()[0].trajectories[:1])]
    async with endpoint(lambda body, n: by_place(body, n) if n == TRIES else 503, bodies) as teacher:
        assert [*(await teacher_scores(teacher, alone)).values()] == [[-2.0, -3.0, -4.0]]
    assert [body["key"] for body in bodies] == ["Bearer secret"] * TRIES
    assert pauses == [1.0, 2.0, 4.0, 8.0]


async def test_a_teacher_that_hangs_is_said_to_give_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "TIMEOUT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        teacher = TeacherConfig(url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1", model="large")
        with pytest.raises(TrainingStopped, match=r"it gave no answer in 0.01 s \(TimeoutError\); start an endpoint"):
            await teacher_scores(teacher, groups()[:1])


@pytest.mark.parametrize("server", ["vllm", "sglang"])
async def test_the_log_probs_of_real_servers_are_read(server: str) -> None:
    """The request is the recorded one, and the prompt has control tokens."""
    exchange, bodies = recorded(server, "scored"), list[dict[str, Any]]()
    ids = exchange["request"]["prompt"]
    alone = [Group(task=TASK, trajectories=(make_trajectory(FakeTurn(ids=ids[1:]), prompt=ids[:1]),))]
    async with endpoint(lambda body, n: exchange, bodies) as teacher:
        (found,) = (await teacher_scores(teacher, alone)).values()
    assert [{**body, "model": "theirs"} for body in bodies] == [exchange["request"] | {"key": ""}]
    first, *told, _ = exchange["response"]["choices"][0]["logprobs"]["token_logprobs"]
    assert first is None and found == told and len(found) == len(ids) - 1 == 14


@pytest.mark.parametrize(
    ("answer", "requests", "words"),
    [
        (recorded("llamacpp", "scored"), 1, "has no log-probs of the prompt"),
        (recorded("vllm", "scored_too_long"), 1, "context length is 1024 tokens"),
        (recorded("sglang", "scored_too_long"), 1, "context length (1024 tokens)"),
        (ANOTHER_NAME, 1, "has no log-probs of the prompt"),
        (503, TRIES, "it answered 503"),
        (404, 1, "it answered 404 for 6 ids"),
        ([None, -1.0], 1, "it gave 2 log-probs for 6 tokens"),
        ([None] + [-1.0] * 7, 1, "it gave 8 log-probs for 6 tokens"),
        ({"status": 401, "response": "wrong key: secret"}, 1, "wrong key: ***"),
        ([None, None, None, None, None, None], 1, "has no log-probs of the prompt"),
        ("nothing", 1, "has no log-probs of the prompt"),
        *(
            ([None, -1.0, -1.0, number, -1.0, -1.0], 1, f"it gave {number!r}, which is no log-prob")
            for number in (float("-inf"), -9999.0, float("nan"), 0.5)
        ),
        ([-1.0] * 6, 1, "it gave the log-prob -1.0 for the first token"),
        ([-1.0] * 1000, 1, "an answer of more than 4000 bytes"),
        (302, 1, "it answered 302"),
    ],
)
async def test_a_teacher_that_scores_no_prompt_ends_the_run_in_one_line(
    answer: Any, requests: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 4000)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setenv("ROCSTAR_TEACHER_KEY", "secret")
    bodies: list[dict[str, Any]] = []
    alone = [Group(task=TASK, trajectories=groups()[0].trajectories[:1])]
    async with endpoint(lambda body, n: answer, bodies) as teacher:
        with pytest.raises(TrainingStopped) as stopped:
            await teacher_scores(teacher, alone)
    assert words in str(stopped.value) and "--resume" in str(stopped.value) and "\n" not in str(stopped.value)
    assert len(bodies) == requests


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({}, "teacher.url = '' is no address"),
        ({"teacher": {"url": "http://me:word@host/v1"}}, "a password, which no recipe keeps"),
        ({"rl": {"temperature": 0.7}}, "needs rl.temperature = 1"),
        ({"rl": {"timeouts": "negative"}}, "needs rl.timeouts = 'leave_out'"),
        ({"rl": {"refill": 2}}, "rl.refill = 2 changes with rewards"),
        ({"rl": {"length_penalty": 0.5}}, "rl.length_penalty = 0.5 changes with rewards"),
        ({"rl": {"advantage": "grpo"}}, "teacher.url = 'http://host/v1' is read with rl.advantage = 'distill' alone"),
    ],
)
def test_a_recipe_that_cannot_be_distilled_is_refused(raw: dict[str, Any], words: str) -> None:
    known = {"teacher": {"url": "http://host/v1"}} if raw else {}
    with pytest.raises(ConfigError) as refused:
        parse_recipe({**known, **raw, "rl": {"advantage": "distill", **raw.get("rl", {})}}, where="r.toml")
    assert words in str(refused.value)
