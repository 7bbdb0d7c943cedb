"""`rocstar doctor --node [RECIPE]`: is this node fit for a run, respect by respect, with the fix.

Exit codes: 0 fit, 1 with warnings, 2 not fit. The launchers of cluster/ ask every node first.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe

PORT = 29500


def node_doctor(options: argparse.Namespace, fields: Sequence[str]) -> int:
    """Check this node and print the results; return the exit code of the worst.

    Raises:
        ConfigError: the recipe is invalid.
    """
    from rocstar.train.plan.node_facts import check_node, exit_code, gather_node

    if fields and not options.node:
        raise ConfigError(f"{fields[0]!r} is a field of a recipe; name one: rocstar doctor --node RECIPE")
    facts = gather_node(options.ports or [PORT])
    needs, more = _needs(options, fields, len(facts.gpus))
    checks = check_node(facts, nodes=options.nodes, **needs)
    code = exit_code(checks)
    if options.json:
        plain = dataclasses.asdict(facts) | more
        if facts.clock_error_s == float("inf"):
            plain["clock_error_s"] = None  # JSON has no infinity
        print(json.dumps({"fit": code < 2, "checks": [dataclasses.asdict(one) for one in checks], "node": plain}))
        return code
    print(f"node {facts.host}: {('fit', 'fit, with warnings', 'NOT fit')[code]}")
    for one in checks:
        print(f"  {one.name:<14} {one.fitness:<8} {one.found}")
        if one.fix:
            print(f"  {'':<14} {'fix':<8} {one.fix}")
    return code


def _needs(options: argparse.Namespace, fields: Sequence[str], gpus: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the run's requirements as arguments of `check_node`, and the number of learner ranks here."""
    from rocstar.train.plan.preflight import Findings, check_disk, examine_engine
    from rocstar.train.serving.placement import num_gpus_named, num_learner_gpus, recipe_of_serving_node

    if not options.node:
        return {}, {}
    recipe = load_recipe(options.node, list(fields))
    found, ranks, named = Findings(), None, None
    here = found.collect(lambda: recipe_of_serving_node(recipe, gpus)) if options.serves else recipe
    if here is not None:
        examine_engine(here, found, learns=True, nodes=options.nodes)
    found.collect(lambda: check_disk(recipe, options.output_dir or Path("runs") / recipe.run.name))
    if not options.serves:
        ranks = found.collect(lambda: num_learner_gpus(recipe.engine, gpus)) if gpus else 1
        named = num_gpus_named(recipe.engine)
    needs = {"gpus": named, "recipe_problems": found.problems}
    return needs, {"ranks": ranks, "recipe": recipe.run.name}
