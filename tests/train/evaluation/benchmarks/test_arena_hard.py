"""An attempt is judged in two games with sides swapped, by an endpoint that may fail and receives no secret.

The judge is a fake on loopback; its answers have the form of the API's.
"""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from rocstar.engine.types import Failed, Outcome, Scored, Task
from rocstar.train.evaluation.benchmarks import judge_endpoint
from rocstar.train.evaluation.benchmarks.arena_hard import (
    MODEL,
    OUR_PROMPT,
    ArenaJudge,
    arena_score,
    build_judge,
    clustered_interval,
    load_prompt,
    load_tasks,
    parse_label,
    pooled,
    score_games,
)
from rocstar.train.evaluation.benchmarks.judge_endpoint import TRIES, JudgeEndpoint
from rocstar.train.evaluation.provenance import differences, judge_facts
from rocstar.train.evaluation.sets import evaluation_sets
from rocstar.train.recipe.config import EvalConfig, Recipe
from rocstar.train.recipe.errors import ConfigError

from .... import needs
from ..eval_folders import attempt_at

KEY = "sk-secret-of-the-test"
TASK = Task(id="1", source="arena_hard", question="Name {a} river.", answer="", meta={"baseline": "The Rhine."})


@dataclass
class FakeJudge:
    """Answers with what `says` makes of a request, and keeps the requests."""

    says: Callable[[str], web.Response | str]
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        said = self.says(body["messages"][1]["content"])
        if isinstance(said, web.Response):
            return said
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": said}}]})

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@asynccontextmanager
async def judged_by(fake: FakeJudge) -> AsyncIterator[ArenaJudge]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield ArenaJudge(JudgeEndpoint(f"http://{host}:{port}/v1/", MODEL, pause=fake.pause))
    finally:
        await runner.cleanup()


def prefers(text: str) -> Callable[[str], str]:
    """A judge that finds the answer with `text` much better, on whichever side it is."""

    def says(game: str) -> str:
        a, b = game.split("## Answer A")[1].split("## Answer B")
        return "Both [[A>B]] at first sight.\n[[A>>B]]" if text in a and text not in b else "[[B>>A]]"

    return says


async def judged(fake: FakeJudge, text: str = "The Elbe.", *, is_truncated: bool = False) -> Outcome:
    async with judged_by(fake) as judge:
        return await judge.score(attempt_at(TASK, text, is_truncated=is_truncated), deadline=None)


async def test_the_better_answer_wins_both_games_on_both_sides() -> None:
    fake = FakeJudge(prefers("Elbe"))
    won = await judged(fake, "<think>hm</think>The Elbe.")
    assert won == Scored(reward=1.0, method="B>>A A>>B", is_correct=True)
    assert isinstance(await judged(fake, "The {QUESTION}."), Scored)
    games = [body["messages"][1]["content"] for body in fake.asked]
    assert games[0].index("The Rhine.") < games[0].index("The Elbe.")
    assert games[1].index("The Elbe.") < games[1].index("The Rhine.")
    assert "Name {a} river." in games[0] and "The {QUESTION}." in games[2] and "hm" not in games[0]
    settings = {"model": "gpt-4-1106-preview", "temperature": 0.0, "max_tokens": 4096}
    assert fake.asked[0] | {"messages": []} == settings | {"messages": []}


async def test_a_judge_that_always_prefers_the_first_gives_a_draw() -> None:
    found = await judged(FakeJudge(lambda game: "[[A>>B]]"))
    assert found == Scored(reward=0.5, method="A>>B A>>B", is_correct=False)


async def test_a_transient_fault_is_retried() -> None:
    answers = [web.Response(status=503), web.Response(status=429), "[[A=B]]", "[[A=B]]"]
    fake = FakeJudge(lambda game: answers.pop(0))
    assert await judged(fake) == Scored(reward=0.5, method="A=B A=B", is_correct=False)
    assert fake.pauses == [1.0, 2.0]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, "no such key", ("judge", False, 1)),
        (500, "", ("judge", True, TRIES)),
        (200, "{", ("judge", True, TRIES)),
        (200, "[]", ("judge", True, TRIES)),
        (200, '{"choices": []}', ("judge", True, TRIES)),
        (200, '{"choices": [{"message": {"content": null}}]}', ("judge", True, TRIES)),
        (200, '{"choices": [{"message": {"content": "I cannot decide."}}]}', ("no_label", False, 1)),
    ],
)
async def test_an_attempt_without_a_judgement_failed(status: int, body: str, expected: tuple[str, bool, int]) -> None:
    fake = FakeJudge(lambda game: web.Response(status=status, text=body))
    outcome = await judged(fake)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retryable, len(fake.asked)) == expected


async def test_the_deadline_ends_the_wait_for_a_judge() -> None:
    async with judged_by(FakeJudge(lambda game: "[[A=B]]")) as judge:
        past = asyncio.get_running_loop().time() - 1
        with pytest.raises(TimeoutError):
            await judge.score(attempt_at(TASK, "The Elbe."), deadline=past)


async def test_a_judge_that_hangs_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_endpoint, "TIMEOUT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fake = FakeJudge(lambda prompt: "")
        endpoint = JudgeEndpoint(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "judge", pause=fake.pause)
        with pytest.raises(judge_endpoint.JudgeFault, match="did not answer: TimeoutError"):
            await endpoint.ask([], deadline=None)


async def test_the_key_is_sent_and_appears_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCSTAR_JUDGE_KEY", KEY)
    fake = FakeJudge(lambda game: web.Response(status=403, text=f"bad key {KEY}"))
    async with judged_by(fake) as judge:
        outcome = await judge.score(attempt_at(TASK, "The Elbe."), deadline=None)
        assert KEY not in json.dumps(judge.description)
    assert fake.keys == [f"Bearer {KEY}"]
    assert isinstance(outcome, Failed) and "403" in outcome.detail and KEY not in outcome.detail


@pytest.mark.parametrize(("text", "is_truncated"), [("The Elbe", True), ("  \n", False), ("<think>a", False)])
async def test_a_truncated_or_empty_attempt_lost(text: str, is_truncated: bool) -> None:
    fake = FakeJudge(lambda game: "[[A=B]]")
    outcome = await judged(fake, text, is_truncated=is_truncated)
    assert isinstance(outcome, Scored) and not fake.asked
    assert outcome.reward == 0.0 and outcome.method.endswith("A>>B B>>A")


def test_scores_are_pooled_from_the_labels() -> None:
    scored: list[tuple[Task, Scored, dict[str, float]]] = [
        (TASK, Scored(reward=1.0, method="B>>A A>>B"), {}),
        (TASK, Scored(reward=0.5, method="A=B A=B"), {}),
        (TASK, Scored(reward=0.0, method="truncated A>>B B>>A"), {}),
    ]
    found = pooled(scored)
    assert found["arena_mean"] == pytest.approx(100 * (6 + 1) / 14)
    assert found["arena_score_p05"] <= found["arena_score"] <= found["arena_score_p95"]
    assert found["arena_mean_low"] < found["arena_mean"] < found["arena_mean_high"]
    assert pooled([]) == {}


def test_the_words_of_the_original_are_read_from_its_configuration(tmp_path: Path) -> None:
    needs.modules("yaml")
    file = tmp_path / "judge_config.yaml"
    file.write_text(
        'judge_model: x\nsystem_prompt: "Be fair."\n'
        'prompt_template: ["Q: {question_1}\\nA: {answer_1}\\nB: {answer_2}"]\n'
    )
    prompt = load_prompt(file)
    assert prompt.messages("q{", "a", "b") == [
        {"role": "system", "content": "Be fair."},
        {"role": "user", "content": "Q: q{\nA: a\nB: b"},
    ]
    assert (prompt.origin, OUR_PROMPT.origin) == ("judge_config.yaml", "rocstar")
    assert prompt.digest != OUR_PROMPT.digest
    environment = {"ROCSTAR_JUDGE_URL": "http://j/v1", "ROCSTAR_JUDGE_PROMPT": str(file)}
    assert build_judge(environment).description["prompt_digest"] == prompt.digest


@pytest.mark.parametrize(
    "text", ["system_prompt: a", "- 1", "a: [", "", 'system_prompt: a\nprompt_template: "{other}"', "5"]
)
def test_a_configuration_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    needs.modules("yaml")
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_prompt(tmp_path / "bad.yaml")


def test_without_an_endpoint_the_set_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="ROCSTAR_JUDGE_URL is ''"):
        build_judge({})
    options = build_judge({"ROCSTAR_JUDGE_URL": "https://j/v1", "ROCSTAR_JUDGE_MODEL": "m"}).description
    assert (options["judge"], options["prompt"]) == ("m", "rocstar")


def test_the_manifest_names_the_judge_and_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an address with a password in it, which the manifest does not have."""
    monkeypatch.setenv("ROCSTAR_JUDGE_URL", f"https://me:{KEY}@j:8/v1?key={KEY}")
    monkeypatch.setenv("ROCSTAR_JUDGE_MODEL", "m")
    recipe = Recipe(eval=[EvalConfig(set="arena_hard"), EvalConfig(set="aime24")])
    sets = evaluation_sets(recipe, {"arena_hard": [TASK], "aime24": []})
    described = judge_facts(sets)
    assert list(described) == ["arena_hard"]
    assert described["arena_hard"] == {
        "judge": "m",
        "url": "https://j:8/v1",
        "temperature": 0.0,
        "max_tokens": 4096,
        "prompt": "rocstar",
        "prompt_digest": OUR_PROMPT.digest,
    }
    before = {"judge": described | {"arena_hard": described["arena_hard"] | {"judge": "another"}}}
    assert differences(before, {"judge": described}) == ["judge.arena_hard.judge: was 'another', is 'm'"]


def folder(tmp_path: Path, uids: list[str]) -> Path:
    (tmp_path / "model_answer").mkdir()
    questions = [{"uid": uid, "category": "c", "cluster": "d", "prompt": f"Do {uid}."} for uid in "ab"]
    answers = [
        {"uid": uid, "model": "gpt-4-0314", "messages": [{}, {"content": {"answer": f"Did {uid}."}}]} for uid in uids
    ]
    (tmp_path / "question.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (tmp_path / "model_answer" / "gpt-4-0314.jsonl").write_text("\n".join(map(json.dumps, answers)))
    return tmp_path


def test_a_folder_is_read_with_the_answers_of_the_baseline(tmp_path: Path) -> None:
    path = folder(tmp_path, ["b", "a"])
    tasks = load_tasks(path)
    assert [(task.id, task.question, task.meta["baseline"]) for task in tasks] == [
        ("arena_hard-a", "Do a.", "Did a."),
        ("arena_hard-b", "Do b.", "Did b."),
    ]
    assert load_tasks(path / "question.jsonl") == tasks


def test_a_folder_that_lacks_something_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"question\.jsonl' does not exist"):
        load_tasks(tmp_path)
    with pytest.raises(ConfigError, match="no answer to 'b'"):
        load_tasks(folder(tmp_path, ["a"]))


LABELS = ("A>>B", "A>B", "A=B", "B>A", "B>>A")


@pytest.mark.parametrize(
    ("judgement", "label"),
    [
        ("My final verdict is [[A>B]].", "A>B"),
        ("[[A>B]] no, on reflection [[b>>a]]", "B>>A"),
        ("so [A=B]", "A=B"),
        ("[A>B] and then [[B>A]]", "B>A"),
        ("[[A<<B]]", "B>>A"),
        ("[[B=A]]", "A=B"),
        ("[[A>>>B]]", None),
        ("A>B", None),
        ("[[]]", None),
        ("", None),
    ],
)
def test_the_last_label_counts(judgement: str, label: str | None) -> None:
    assert parse_label(judgement) == label


@pytest.mark.parametrize(
    ("first", "second", "points"),
    [
        ("B>>A", "A>>B", (1, 1, 1, 1, 1, 1)),
        ("A>>B", "B>>A", (0, 0, 0, 0, 0, 0)),
        ("A=B", "A=B", (0.5, 0.5)),
        ("A>B", "A>B", (1, 0)),
        ("A>>B", "A>B", (1, 0, 0, 0)),
        ("B>A", "A>>B", (1, 1, 1, 1)),
    ],
)
def test_the_policy_is_b_first_and_a_then(first: str, second: str, points: tuple[float, ...]) -> None:
    assert score_games(first, second) == points


def test_changing_sides_mirrors_the_points() -> None:
    mirror = dict(zip(LABELS, reversed(LABELS), strict=True))
    for first, second in product(LABELS, LABELS):
        mine = score_games(first, second)
        other = score_games(mirror[first], mirror[second])
        assert sorted(mine) == sorted(1 - point for point in other)


def test_the_score_is_that_of_bootstraps_over_games() -> None:
    rng = np.random.default_rng(3)
    points = [score_games(*rng.choice(LABELS, 2)) for _ in range(500)]
    flat = [point for prompt in points for point in prompt]
    found = arena_score(points)
    assert found["arena_mean"] == pytest.approx(100 * math.fsum(flat) / len(flat))
    assert found["arena_score"] == pytest.approx(found["arena_mean"], abs=0.5)
    spread = float(np.std(flat)) / math.sqrt(len(flat))
    assert found["arena_score_p95"] - found["arena_score_p05"] == pytest.approx(329 * spread, rel=0.25)
    assert found["arena_mean_low"] < found["arena_mean"] < found["arena_mean_high"]
    assert arena_score(points) == found
    assert arena_score(points, seed=1)["arena_score"] != found["arena_score"]


def test_games_that_agree_in_a_prompt_tell_no_more_than_one() -> None:
    alone = [(1.0,), (0.0,)] * 50
    repeated = [prompt * 6 for prompt in alone]
    assert clustered_interval(repeated) == pytest.approx(clustered_interval(alone), abs=1e-9)
    score = arena_score(repeated)
    bootstrapped = score["arena_score_p95"] - score["arena_score_p05"]
    assert bootstrapped < 0.6 * (score["arena_mean_high"] - score["arena_mean_low"])


def test_the_interval_covers_at_its_level() -> None:
    """Each prompt has its own skill, so that its games are alike."""
    rng = np.random.default_rng(0)
    drawn = [
        [np.repeat(rng.random(2) < skill, rng.choice([1, 3], 2)).astype(float) for skill in rng.beta(1, 1.5, 120)]
        for _ in range(300)
    ]
    truth = np.concatenate([games for points in drawn for games in points]).mean()
    hits = sum(low <= truth <= high for low, high in map(clustered_interval, drawn))
    assert 0.92 <= hits / len(drawn) <= 0.98


@pytest.mark.parametrize("points", [[(1.0,)] * 20, [(0.0, 0.0)] * 20])
def test_the_interval_is_not_empty_when_all_is_won_or_lost(points: list[tuple[float, ...]]) -> None:
    low, high = clustered_interval(points)
    assert 0.1 < high - low < 0.3


def test_one_prompt_tells_nothing() -> None:
    assert clustered_interval([(1.0, 0.0)]) == (0.0, 1.0)
