"""Log-probs of a teacher at the tokens that the policy sampled, for `rl.advantage = "distill"`.

    ids of a sequence -> POST /completions (echo, logprobs) -> token_logprobs of the prompt -> those of loss tokens

The request is OpenAI's: vLLM, SGLang and `rocstar serve` with the embedded engine answer it with log-probs of
log_softmax(logits), temperature 1. A teacher scores all that the policy wrote, whatever its reward.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Sequence
from typing import Final

import aiohttp

from rocstar.engine.types import Group, Scored, Trajectory
from rocstar.engine.waits import waiting
from rocstar.sandbox.http.bodies import read_at_most
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.rl_config import TeacherConfig

KEY_VARIABLE: Final = "ROCSTAR_TEACHER_KEY"
"""The environment's name for the endpoint's key. No recipe, record or log has it."""
MOST_REQUESTS: Final = 32
TIMEOUT_S: Final = 300.0
"""The limit of one request, with its wait in the teacher's queue."""
TRIES, PAUSE_S = 5, 1.0
"""Requests in all, and the pause behind the first, which doubles."""
MOST_BYTES: Final = 64 << 20
"""The limit of an answer, which has about 100 bytes a token, of vLLM 250."""
MINUS_INFINITY: Final = -9999.0
"""In the answers of vLLM."""
ROUNDING: Final = 1e-3
"""The most that the log-prob of a certain token is above 0."""
MAX_SHOWN: Final = 300
"""Characters of an answer in an error's message."""


class TeacherError(Exception):
    """The teacher does not answer as it must."""


async def teacher_scores(teacher: TeacherConfig, groups: Sequence[Group]) -> dict[str, list[float]]:
    """Return, by the key of each scored trajectory, the teacher's log-prob of every loss token.

    TrainingStopped: a request failed TRIES times.
    """
    key, room = os.environ.get(KEY_VARIABLE, ""), asyncio.Semaphore(MOST_REQUESTS)
    scored = [t for group in groups for t in group.trajectories if isinstance(t.outcome, Scored)]
    async with (
        waiting("the learner", "the teacher's log-probs", kind="teacher", deadline=None),
        aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        ) as http,
    ):

        async def one(trajectory: Trajectory) -> list[float]:
            mask, found = trajectory.loss_mask(), list[float]()
            for tokens in trajectory.sequences:
                async with room:
                    logprobs = await _score(http, teacher, trajectory.ids[tokens].tolist())
                found += [logprob for logprob, is_loss in zip(logprobs, mask[tokens], strict=True) if is_loss]
            return found

        try:
            async with asyncio.TaskGroup() as requests:
                tasks = {str(t.key): requests.create_task(one(t)) for t in scored}
        except* TeacherError as failures:
            problem = str(failures.exceptions[0])
            shown = problem.replace(key, "***") if key else problem
            raise TrainingStopped(
                f"teacher.url = {teacher.url!r}: {shown}; start an endpoint that scores prompts "
                "(vLLM, SGLang, rocstar serve), with a context longer than every trajectory, correct teacher.url and "
                f"teacher.model, or give its key in {KEY_VARIABLE}; --resume goes on"
            ) from None
    return {key: task.result() for key, task in tasks.items()}


async def _score(http: aiohttp.ClientSession, teacher: TeacherConfig, ids: list[int]) -> list[float]:
    """Return the log-prob of each id, NaN for the first, which has nothing before it."""
    # SGLang scores no prompt for logprobs = 0, and refuses max_tokens = 0.
    body = {"model": teacher.model, "prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 1.0}
    problem = ""
    for k in range(TRIES):
        if k:
            await asyncio.sleep(PAUSE_S * 2 ** (k - 1))
        try:
            async with http.post(
                f"{teacher.url.rstrip('/')}/completions", json=body, allow_redirects=False
            ) as response:
                content, status = await read_at_most(response.content, MOST_BYTES), response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = str(error) or f"it gave no answer in {TIMEOUT_S:g} s ({type(error).__name__})"
            continue
        except ValueError as error:
            raise TeacherError(str(error)) from None
        if status == 200:
            return await asyncio.to_thread(_read, content, len(ids))
        problem = f"it answered {status} for {len(ids)} ids: {content[:MAX_SHOWN]!r}"
        if status < 500 and status not in (408, 429):
            break
    raise TeacherError(problem)


def _read(content: bytes, num_ids: int) -> list[float]:
    """Return the prompt's log-probs of an answer. TeacherError for one that has another number, or no number."""
    try:
        given = json.loads(content)["choices"][0]["logprobs"]["token_logprobs"]
        first, found = given[0], [math.nan, *map(float, given[1:num_ids])]
    except (KeyError, IndexError, RecursionError, TypeError, ValueError) as error:
        raise TeacherError(f"{content[:MAX_SHOWN]!r} has no log-probs of the prompt ({error})") from None
    if len(given) not in (num_ids, num_ids + 1):  # with that of a generated token
        raise TeacherError(f"it gave {len(given)} log-probs for {num_ids} tokens")
    if wrong := [one for one in found[1:] if not MINUS_INFINITY < one <= ROUNDING]:
        raise TeacherError(f"it gave {wrong[0]!r}, which is no log-prob of a token")
    if first is not None:  # the log-probs are then those of the tokens from the second on
        raise TeacherError(f"it gave the log-prob {first!r} for the first token, which has nothing before it")
    return found
