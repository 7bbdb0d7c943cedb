"""Does the trained policy need its tool? Held-out accuracy with the sandbox answering only errors.

    python benchmarks/tool_matters.py RUN [RUN ...] --out benchmarks/results/tool_matters.json

For the last checkpoint of every run: avg@4 with the real sandbox, and with one whose every answer is
`RuntimeError: the tool is down` (same prompts, same noise).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from statistics import fmean

import uvloop

from rocstar.engine.inference.base import Sampling
from rocstar.sandbox.testing import FakeSandbox, error
from rocstar.train.evaluation.during_training import EVAL_SEED
from rocstar.train.evaluation.evaluate import evaluate
from rocstar.train.evaluation.saved_model import open_agent
from rocstar.train.learner import checkpoint
from rocstar.train.plan.preflight import load_all_tasks
from rocstar.train.recipe.config import with_eval_limits
from rocstar.train.recipe.load import load_recipe

TOOL_IS_DOWN = FakeSandbox(lambda request: error("RuntimeError: the tool is down\n"))
"""Runs nothing and answers every call with the same error."""


async def compare(run: Path) -> dict[str, object]:
    recipe = load_recipe(run / "config.toml")
    model = checkpoint.latest(run)
    assert model is not None, f"{run} has no checkpoint"
    tasks, stage = load_all_tasks(recipe).all_heldout, recipe.stages[-1]
    chosen_set = with_eval_limits(recipe).eval[0]
    out: dict[str, object] = {"run": run.name, "checkpoint": model.name}
    async with open_agent(recipe, str(model), stage.max_response_tokens, stage.max_turns) as agent:
        agent = dataclasses.replace(agent, sampling=Sampling(temperature=chosen_set.temperature or 0.0))
        down = dataclasses.replace(agent, tools=dataclasses.replace(agent.tools, sandbox=TOOL_IS_DOWN))
        for name, chosen, step in (("real", agent, 0), ("errors_only", down, 1)):
            seed, k = recipe.run.seed + EVAL_SEED, chosen_set.samples_per_task
            result, _ = await evaluate(chosen, tasks, k=k, seed=seed, step=step)
            out[name] = {
                "avg": result.avg,
                "ci": [result.ci_low, result.ci_high],
                "by_source": result.by_source,
            }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = []
    for run in options.runs:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results.append(runner.run(compare(run)))
        print(json.dumps(results[-1]), flush=True)
    real, down = (fmean(r[name]["avg"] for r in results) for name in ("real", "errors_only"))  # type: ignore[index]
    summary = {
        "command": " ".join(["python", *sys.argv]),
        "real": real,
        "errors_only": down,
        "results": results,
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"real {real:.3f}, errors only {down:.3f}")


if __name__ == "__main__":
    main()
