"""Arena-Hard v0.1 (arXiv 2406.11939): 500 requests; a judge compares each answer with that of gpt-4-0314.

    folder: question.jsonl + model_answer/gpt-4-0314.jsonl ──load_tasks──> tasks, baseline's answer in `meta`
    task ──(chat, no tool)──> final text ──two games, sides swapped──> labels ──points──> reward, 0 to 1

In the first game the baseline is A and the policy B; in the second they change sides. A game gives the policy
1, 0.5 or 0 points, and a decided one (>>) counts as three games. The original's score is the mean of 100
bootstraps over these games, with their 5% and 95% quantiles: a 90% interval that takes games of one prompt
for independent. The pooled mean with a 95% interval clustered by prompt is reported too.

An attempt waits for its two games in sequence, at a cost of two requests with up to 4,096 tokens of
judgement. An attempt without a judgement is `Failed`, not a lost game. Scores are comparable with published
ones only under the original's prompt, so the manifest records the prompt.
"""

import hashlib
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rocstar.engine.types import Attempt, Failed, Outcome, Scored, Task
from rocstar.train.evaluation.benchmarks import benchmark, judge_endpoint
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.rows import jsonl_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePrompt:
    """The judge's instructions and the template of a game.

    `template` names QUESTION, ANSWER_A and ANSWER_B in braces, or question_1, answer_1 and answer_2.
    """

    system: str
    template: str
    origin: str

    def messages(self, question: str, answer_a: str, answer_b: str) -> list[dict[str, str]]:
        """Return a game as chat messages. Braces in texts are literal."""
        game = self.template.format(
            QUESTION=question,
            ANSWER_A=answer_a,
            ANSWER_B=answer_b,
            question_1=question,
            answer_1=answer_a,
            answer_2=answer_b,
        )
        return [{"role": "system", "content": self.system}, {"role": "user", "content": game}]

    @property
    def digest(self) -> str:
        """SHA-256 of the system message and the template."""
        return hashlib.sha256(f"{self.system}\0{self.template}".encode()).hexdigest()


OUR_PROMPT = JudgePrompt(
    **tomllib.loads(Path(__file__).with_name("arena_hard.toml").read_text(encoding="utf-8")), origin="rocstar"
)


def load_prompt(path: Path) -> JudgePrompt:
    """Load the prompt of the original's config/judge_config.yaml. ConfigError for a file of another form."""
    import yaml

    try:
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        system, template = found["system_prompt"], found["prompt_template"]
        template = template[0] if isinstance(template, list) else template
        prompt = JudgePrompt(system=system, template=template, origin=path.name)
        prompt.messages("", "", "")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"cannot read the judge's configuration {str(path)!r}: {error}. Pass the original's "
            "config/judge_config.yaml"
        ) from None
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        raise ConfigError(
            f"the judge's configuration {str(path)!r} has no system_prompt and prompt_template. Pass the "
            "original's config/judge_config.yaml of Arena-Hard v0.1, or none for rocstar's prompt"
        ) from None
    return prompt


_LABELS = tuple(re.compile(pattern) for pattern in (r"\[\[([AB<>=]+)\]\]", r"\[([AB<>=]+)\]"))
"""In double brackets, else in single ones."""
STRONG = 3
"""The number of games that a decided one counts for."""
_POINTS_OF_A = {"A>>B": 1.0, "A>B": 1.0, "A=B": 0.5, "B>A": 0.0, "B>>A": 0.0}
_MIRRORED = {"A<<B": "B>>A", "A<B": "B>A", "B=A": "A=B", "B<A": "A>B", "B<<A": "A>>B"}

BOOTSTRAPS, BOOTSTRAP_TAILS = 100, (0.05, 0.95)


def parse_label(judgement: str) -> str | None:
    """Return the last label of a judgement, with the side of A or of B first; None without a label."""
    for pattern in _LABELS:
        if found := pattern.findall(judgement.upper()):
            label = _MIRRORED.get(found[-1], found[-1])
            return label if label in _POINTS_OF_A else None
    return None


def score_games(first: str, second: str) -> tuple[float, ...]:
    """Return the policy's points in both games, one entry per counted game."""
    lost = [1 - _POINTS_OF_A[first]] * _count(first)
    won = [_POINTS_OF_A[second]] * _count(second)
    return (*won, *lost)


def _count(label: str) -> int:
    return STRONG if ">>" in label else 1


def arena_score(points: Sequence[Sequence[float]], *, seed: int = 0) -> dict[str, float]:
    """Return the scores of prompts by their points, in percent: `arena_score` and its quantiles are the
    original's, `arena_mean` is the pooled mean with a 95% interval clustered by prompt."""
    flat = np.array([point for prompt in points for point in prompt])
    rng = np.random.default_rng(seed)
    means = [rng.choice(flat, flat.size).mean() for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(means, BOOTSTRAP_TAILS)
    mean_low, mean_high = clustered_interval(points)
    return {
        "arena_score": 100 * float(np.mean(means)),
        "arena_score_p05": 100 * float(low),
        "arena_score_p95": 100 * float(high),
        "arena_mean": 100 * (math.fsum(flat) / flat.size),
        "arena_mean_low": 100 * mean_low,
        "arena_mean_high": 100 * mean_high,
    }


def clustered_interval(points: Sequence[Sequence[float]], *, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the pooled mean with prompts as the sample; (0, 1) for one prompt.

    Wilson's interval at the effective sample size from the linearised variance of the ratio, with a t
    quantile. Prompts with equal shares count as one game each.
    """
    from scipy import special

    sums = np.array([math.fsum(prompt) for prompt in points])
    counts = np.array([len(prompt) for prompt in points])
    prompts, total = len(points), counts.sum()
    if prompts < 2:
        return 0.0, 1.0
    mean = float(sums.sum() / total)
    residuals = sums - mean * counts
    variance = prompts / (prompts - 1) * float((residuals**2).sum()) / float(total) ** 2
    size = min(mean * (1 - mean) / variance, float(total)) if variance > 0 else float(prompts)
    t = float(special.stdtrit(prompts - 1, (1 + level) / 2))
    centre = (mean + t * t / (2 * size)) / (1 + t * t / size)
    half = t * math.sqrt(mean * (1 - mean) / size + t * t / (4 * size * size)) / (1 + t * t / size)
    return min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean)


NAME = "arena_hard"
BASELINE = "gpt-4-0314"
URL_VARIABLE, MODEL_VARIABLE = "ROCSTAR_JUDGE_URL", "ROCSTAR_JUDGE_MODEL"
PROMPT_VARIABLE = "ROCSTAR_JUDGE_PROMPT"
MODEL = "gpt-4-1106-preview"
LOST = ("A>>B", "B>>A")
"""The games of a truncated or empty attempt."""


def load_tasks(path: Path) -> list[Task]:
    """Return the tasks of a folder laid out as the original's data/arena-hard-v0.1.

    Raises:
        ConfigError: a file is missing or has another form, or the baseline lacks an answer.
    """
    folder = path if path.is_dir() else path.parent
    questions, answers = folder / "question.jsonl", folder / "model_answer" / f"{BASELINE}.jsonl"
    for file in (questions, answers):
        if not file.is_file():
            raise ConfigError(
                f"{str(file)!r} does not exist. Pass the folder data/arena-hard-v0.1 of "
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
            f"{where} is not an answer of Arena-Hard: it needs uid and messages. Pass the original's file."
        ) from None


def _task(row: Any, baseline: Mapping[str, str], where: str) -> Task:
    try:
        uid, prompt = str(row["uid"]), row["prompt"]
    except (KeyError, TypeError):
        raise ConfigError(f"{where} has no uid and prompt. Pass the question.jsonl of Arena-Hard v0.1.") from None
    if uid not in baseline or not isinstance(prompt, str):
        raise ConfigError(f"{where}: {BASELINE} has no answer to {uid!r}. Pass files of one version.")
    return Task(id=f"{NAME}-{uid}", source=NAME, question=prompt, answer="", meta={"baseline": baseline[uid]})


class ArenaJudge:
    """Judges two games per attempt.

    Invariant: a `Scored` attempt was judged in both games, or was truncated or empty and lost both; without a
    label in one of them it is `Failed`. `method` holds both labels, from which `pooled` scores.
    """

    def __init__(self, endpoint: judge_endpoint.JudgeEndpoint, prompt: JudgePrompt = OUR_PROMPT) -> None:
        self._endpoint, self._prompt = endpoint, prompt

    @property
    def description(self) -> dict[str, Any]:
        """The inputs of a verdict besides the answers, for the manifest, without key or password."""
        url = urlsplit(self._endpoint.url)
        return {
            "judge": self._endpoint.model,
            "url": f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}",
            "temperature": judge_endpoint.TEMPERATURE,
            "max_tokens": judge_endpoint.MAX_TOKENS,
            "prompt": self._prompt.origin,
            "prompt_digest": self._prompt.digest,
        }

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        """Judge one game, then the other. TimeoutError at `deadline`, a `loop.time()`."""
        answer = benchmark.strip_thinking(attempt.turns)
        if attempt.is_truncated or not answer.strip():
            return _outcome(*LOST, why="truncated " if attempt.is_truncated else "empty ")
        question, baseline = attempt.task.question, attempt.task.meta["baseline"]
        labels = []
        for side_a, side_b in ((baseline, answer), (answer, baseline)):
            game = self._prompt.messages(question, side_a, side_b)
            try:
                label = parse_label(await self._endpoint.ask(game, deadline=deadline))
            except judge_endpoint.JudgeFault as fault:
                return Failed(kind="judge", retryable=fault.retryable, detail=str(fault))
            if label is None:
                return Failed(kind="no_label", retryable=False, detail="the judgement ends without a label")
            labels.append(label)
        return _outcome(*labels)


def _outcome(first: str, second: str, *, why: str = "") -> Scored:
    points = score_games(first, second)
    reward = sum(points) / len(points)
    return Scored(reward=reward, method=f"{why}{first} {second}", is_correct=reward > 0.5)


def pooled(scored: Sequence[tuple[Task, Scored, Mapping[str, float]]]) -> Mapping[str, float]:
    """Return the `arena_score` of all attempts."""
    games = [score_games(*outcome.method.split()[-2:]) for _, outcome, _ in scored]
    return arena_score(games) if games else {}


def build_judge(environment: Mapping[str, str]) -> ArenaJudge:
    """Return the judge that the environment names. ConfigError if it names none."""
    url = environment.get(URL_VARIABLE, "").strip()
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the set {NAME!r} needs a judge, and {URL_VARIABLE} is {url!r}; set it to an OpenAI-compatible "
            f"endpoint up to /v1, its key to {judge_endpoint.KEY_VARIABLE}, and {MODEL_VARIABLE} if the judge is not "
            f"{MODEL}"
        )
    endpoint = judge_endpoint.JudgeEndpoint(url, environment.get(MODEL_VARIABLE) or MODEL)
    words = environment.get(PROMPT_VARIABLE)
    return ArenaJudge(endpoint, load_prompt(Path(words)) if words else OUR_PROMPT)


ARENA_HARD = benchmark.benchmark_of(
    NAME,
    load=load_tasks,
    judge=lambda: build_judge(os.environ),
    describe=lambda: build_judge(os.environ).description,
    near_miss=benchmark.empty_answer,
    pooled=pooled,
)
