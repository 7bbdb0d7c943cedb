"""What `rstar2_14b` holds at 8 x 8, rehearsed: the peak of every act on GPUs of two sizes.

    python benchmarks/rehearsed_14b.py --out benchmarks/results/rehearsed_14b.json

Nothing runs on a GPU: it is what `rocstar train rstar2_14b --dry-run --world 8x8 --gpu-memory-gb M` says, for
each M. `publish` is played in three ways besides: as the recipe says (broadcast, two buckets at a time), by
disk (tensor by tensor), and whole, as an engine in the learner's process takes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import ROOT, bar, finish

from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.load import load_recipe
from rocstar.train.rehearsal.categories import GIB
from rocstar.train.rehearsal.rehearse import rehearse_recipe
from rocstar.train.rehearsal.report import Rehearsal

RECIPE = "recipes/rstar2_14b.toml"
MEMORY_GIB = (192.0, 80.0)


def acts(found: Rehearsal) -> dict[str, float]:
    return {name: act["peak_gib"] for name, act in found.as_json()["rehearsal"]["acts"].items()}


def publishes(recipe: Recipe, machines: Machines) -> dict[str, float]:
    """The peak of a publish that no step came before, by its way. GiB, the learner's weights among them."""
    ways = {
        "broadcast": recipe.engine,
        "disk": recipe.engine.model_copy(update={"publish": "disk"}),
        "whole": EngineConfig(),
    }
    found = {}
    for way, engine in ways.items():
        alone = rehearse_recipe(
            recipe.model_copy(update={"engine": engine}), machines, MEMORY_GIB[0], acts=("publish",)
        )
        found[way] = acts(alone)["publish"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    recipe = load_recipe(str(ROOT / RECIPE), [])
    machines = Machines.parse("8x8", recipe.engine)
    sizes, bars = [], []
    for memory in MEMORY_GIB:
        found = rehearse_recipe(recipe, machines, memory)
        assert found.verdict is not None and found.room is not None, found.problems
        peaks = acts(found)
        sizes.append(
            {
                "memory_gib": memory,
                "acts": peaks,
                "spare": found.verdict.spare,
                "kv_gib": round(found.room.kv / GIB, 1),
                "trajectories": found.room.mean,
                "timeline": dataclasses.asdict(found.timeline) if found.timeline else None,
                "seconds": round(found.seconds, 1),
            }
        )
        bars.append(
            bar(
                f"publish over RL step, {memory:g} GiB",
                round(peaks["publish"] / peaks["rl"], 3),
                1.0,
                at_most=True,
            )
        )
    result = {"sizes": sizes, "publish_alone": publishes(recipe, machines)}
    return finish("rehearsed_14b", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
