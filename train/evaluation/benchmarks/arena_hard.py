"""Arena-Hard v0.1 (arXiv 2406.11939): 500 requests; a judge compares each answer with that of gpt-4-0314.

    folder: question.jsonl + model_answer/gpt-4-0314.jsonl ──load──> tasks, baseline's answer in `meta`
    task ──(chat, no tool)──> final text ──two games, sides swapped──> labels ──points──> reward, 0 to 1

Who waits: an attempt for its two games, one after the other, and each for the endpoint (arena/endpoint.py).
What it costs: two requests with up to 4,096 tokens of judgement for each attempt. Not judged is `Failed`,
never a lost game.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rocstar.engine.rollout.rollout import Judge
from rocstar.engine.types import Attempt, Failed, Outcome, Scored, Task
from rocstar.train.evaluation.benchmarks.arena.endpoint import EndpointOptions, JudgeEndpoint, JudgeFault
from rocstar.train.evaluation.benchmarks.arena.games import arena_score, label_of, points_of
from rocstar.train.evaluation.benchmarks.arena.prompts import OUR_PROMPT, JudgePrompt, read_prompt
from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Defaults, Published
from rocstar.train.evaluation.benchmarks.spoken import nothing_said, spoken
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.rows import jsonl_rows

NAME = "arena_hard"
BASELINE = "gpt-4-0314"
URL_VARIABLE, MODEL_VARIABLE = "ROCSTAR_JUDGE_URL", "ROCSTAR_JUDGE_MODEL"
KEY_VARIABLE, PROMPT_VARIABLE = "ROCSTAR_JUDGE_KEY", "ROCSTAR_JUDGE_PROMPT"
LOST = ("A>>B", "B>>A")
"""The games of an attempt that was cut off, or said nothing."""


def load(path: Path) -> list[Task]:
    """Return the tasks of a folder laid out as the original's data/arena-hard-v0.1.

    Raises:
        ConfigError: a file is missing or of another form, or the baseline did not answer a request.
    """
    folder = path if path.is_dir() else path.parent
    questions, answers = folder / "question.jsonl", folder / "model_answer" / f"{BASELINE}.jsonl"
    for file in (questions, answers):
        if not file.is_file():
            raise ConfigError(
                f"{str(file)!r} does not exist; give the folder data/arena-hard-v0.1 of "
                "github.com/lmarena/arena-hard-auto"
            )
    baseline = dict(_answer(row, where) for where, row in jsonl_rows(answers))
    return [_task(row, baseline, where) for where, row in jsonl_rows(questions)]


def _answer(row: Any, where: str) -> tuple[str, str]:
    try:
        said = row["messages"][-1]["content"]
        text = said["answer"] if isinstance(said, dict) else said
        if not isinstance(text, str):
            raise TypeError
        return str(row["uid"]), text
    except (KeyError, IndexError, TypeError):
        raise ConfigError(
            f"{where} is no answer of Arena-Hard: uid and messages; give the original's"
        ) from None


def _task(row: Any, baseline: Mapping[str, str], where: str) -> Task:
    try:
        uid, prompt = str(row["uid"]), row["prompt"]
    except (KeyError, TypeError):
        raise ConfigError(
            f"{where} has no uid and prompt; give the question.jsonl of Arena-Hard v0.1"
        ) from None
    if uid not in baseline or not isinstance(prompt, str):
        raise ConfigError(f"{where}: {BASELINE} has no answer to {uid!r}; give both files of one version")
    return Task(id=f"{NAME}-{uid}", source=NAME, question=prompt, answer="", meta={"baseline": baseline[uid]})


class ArenaJudge:
    """Has two games judged.

    Invariant: a `Scored` attempt was judged in both games, or was cut off or empty and lost both; an endpoint
    that gave no label in one of them gives `Failed`. `method` holds both labels, from which `pooled` scores.
    """

    def __init__(self, endpoint: JudgeEndpoint, prompt: JudgePrompt = OUR_PROMPT) -> None:
        self._endpoint, self._prompt = endpoint, prompt

    @property
    def description(self) -> dict[str, Any]:
        """What a verdict depends on besides the answers, for the manifest; no key or password is in it."""
        options = self._endpoint.options
        url = urlsplit(options.url)
        return {
            "judge": options.model,
            "url": f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}",
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "prompt": self._prompt.origin,
            "prompt_digest": self._prompt.digest,
        }

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Play one game, then the other. TimeoutError at `deadline`, a `loop.time()`."""
        answer = spoken(attempt.turns)
        if attempt.is_truncated or not answer.strip():
            return _outcome(*LOST, why="truncated " if attempt.is_truncated else "empty ")
        question, baseline = attempt.task.question, attempt.task.meta["baseline"]
        labels = []
        for side_a, side_b in ((baseline, answer), (answer, baseline)):
            game = self._prompt.messages(question, side_a, side_b)
            try:
                label = label_of(await self._endpoint.ask(game, deadline=deadline))
            except JudgeFault as fault:
                return Failed(kind="judge", retryable=fault.retryable, detail=str(fault))
            if label is None:
                return Failed(
                    kind="no_label", retryable=False, detail="the judge ended with none of the labels"
                )
            labels.append(label)
        return _outcome(*labels)


def _outcome(first: str, second: str, *, why: str = "") -> Scored:
    points = points_of(first, second)
    reward = sum(points) / len(points)
    return Scored(reward=reward, method=f"{why}{first} {second}", is_correct=reward > 0.5)


def pooled(scored: Sequence[tuple[Task, Scored, Mapping[str, float]]]) -> Mapping[str, float]:
    """Return the score over all games, as the original has it and with our interval, in percent."""
    games = [points_of(*outcome.method.split()[-2:]) for _, outcome, _ in scored]
    if not games:
        return {}
    found = arena_score(games)
    return {
        "arena_score": 100 * found.score,
        "arena_score_p05": 100 * found.low,
        "arena_score_p95": 100 * found.high,
        "arena_mean": 100 * found.mean,
        "arena_mean_low": 100 * found.interval[0],
        "arena_mean_high": 100 * found.interval[1],
    }


def judge_of(environment: Mapping[str, str]) -> ArenaJudge:
    """Return the judge that the environment names; ConfigError if it names none."""
    url = environment.get(URL_VARIABLE, "").strip()
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the set {NAME!r} needs a judge, and {URL_VARIABLE} is {url!r}; set it to an OpenAI-compatible "
            f"endpoint up to /v1, its key to {KEY_VARIABLE}, and {MODEL_VARIABLE} if the judge is not "
            f"{EndpointOptions(url='').model}"
        )
    options = EndpointOptions(
        url=url,
        model=environment.get(MODEL_VARIABLE) or EndpointOptions(url="").model,
        key_variable=KEY_VARIABLE,
    )
    words = environment.get(PROMPT_VARIABLE)
    return ArenaJudge(JudgeEndpoint(options), read_prompt(Path(words)) if words else OUR_PROMPT)


def _judge() -> Judge:
    return judge_of(os.environ)


def _description() -> Mapping[str, Any]:
    return judge_of(os.environ).description


ARENA_HARD = Benchmark(
    name=NAME,
    title="Arena-Hard v0.1",
    num_questions=500,
    licence="Apache-2.0",
    source=Published(
        repository="",
        revision="",
        file="the folder data/arena-hard-v0.1 of github.com/lmarena/arena-hard-auto at 196f6b82: "
        f"question.jsonl and model_answer/{BASELINE}.jsonl",
        digest="c1b9daab1afde52554d6462263be32f83de438c3ff3b1a8c481b09abcf527083",
    ),
    asking=Asking.chat,
    load=load,
    judge=_judge,
    describe=_description,
    near_miss=nothing_said,
    pooled=pooled,
    defaults=Defaults(samples=1, temperature=0.0),
)
