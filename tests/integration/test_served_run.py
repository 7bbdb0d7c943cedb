"""A trained model served: it answers as an evaluation found it to, and what is rewarded can be learned."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Scored
from rocstar.train.evaluation.sets import EVAL_SEED
from rocstar.train.groups.from_rollouts import Records
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.load import recipe_of_model
from rocstar.train.served.answering import ServeOrder, open_served
from tests.fakes.json_lines import read_folder


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    async with session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def test_it_answers_as_it_was_evaluated_and_its_thumbs_are_learned(
    workshop: Any, finished: Path, tmp_path: Path, read_rows: Any
) -> None:
    """The same tasks, seeds and siblings: the same texts and rewards, token for token."""
    model = str(checkpoint.step_directory(finished, 4))
    ended = workshop.succeed("eval", "coin.toml", "--model", model, f"--out={tmp_path / 'eval'}", "--json")
    evaluated = list(read_records(tmp_path / "eval" / "attempts" / "heldout.jsonl"))
    recipe, out = recipe_of_model(model), tmp_path / "served"

    async def served() -> dict[str, Any]:
        told: dict[str, Any] = {}
        order = ServeOrder(recipe=recipe, out=out, drain_s=10.0, note=lambda line: None)
        async with open_served(order) as (_, endpoint), aiohttp.ClientSession() as session:
            for task in {record["task"]["id"]: record["task"] for record in evaluated}.values():
                body = {
                    "model": "rocstar-agent",
                    "messages": [{"role": "user", "content": task["question"]}],
                    "metadata": {"task_id": task["id"], "answer": task["answer"]},
                    "seed": recipe.run.seed + EVAL_SEED,
                    "n": 2,
                }
                told[task["id"]] = await ask(session, f"{endpoint.url}/v1/chat/completions", body)
            asked = {"model": "rocstar-agent", "n": 4, "messages": [{"role": "user", "content": "Toss 11"}]}
            answer = await ask(session, f"{endpoint.url}/v1/chat/completions", asked)
            for index, thumb in enumerate(["up", "down", "down"]):
                body = {"id": answer["id"], "index": index, "thumb": thumb}
                await ask(session, f"{endpoint.url}/v1/feedback", body)
        return told

    told = asyncio.run(served())
    records = list(read_folder(out / "trajectories"))
    by_attempt = {(r["task"]["id"], r["sibling"]): r for r in records}
    assert len(records) == len(evaluated) + 4
    for attempt in evaluated:
        same = by_attempt[attempt["task"]["id"], attempt["sibling"]]
        assert (same["ids"], same["outcome"]) == (attempt["ids"], attempt["outcome"])
    rewards = [reward for one in told.values() for reward in one["rocstar"]["rewards"]]
    assert sum(rewards) / len(rewards) == json.loads(ended.stdout)["eval/heldout/avg@2"]

    steps = [recipe.stages[0].model_copy(update={"steps": 1})]
    learned = Records.open(out, recipe.model_copy(update={"stages": steps}), tmp_path / "run").groups(1)
    (group,) = [group for group in learned if group.task.question == "Toss 11" and len(group.trajectories) == 4]
    assert [t.outcome.reward for t in group.trajectories if isinstance(t.outcome, Scored)] == [1.0, 0.0, 0.0]

    run = tmp_path / "learned"
    options = [f"--model.path={model}", "--stages.0.steps=1", "--stages.1.steps=0", f"--output-dir={run}"]
    ended = workshop.succeed("train", "coin.toml", "--from-rollouts", str(out), *options)
    (row,) = read_rows(run, "rl")
    outcomes = [record["outcome"] for record in records]
    scored = [outcome["reward"] for outcome in outcomes if "reward" in outcome]
    assert row["reward/mean"] == pytest.approx(sum(scored) / len(scored))
    assert row["ledger/generated"] == len(records) and row["ledger/failed"] == 1  # it has no reward
    assert row["optim/grad_norm"] > 0
