"""`rocstar eval`: modes and output. Imports torch only to evaluate.

RECIPE or MODEL [--set NAME]  evaluate          --rescore FOLDER   judge stored attempts again
--verify FOLDER               compare a folder with its manifest
--check-set NAME              judge a built-in set's golds
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import recipe_of

if TYPE_CHECKING:
    from rocstar.train.evaluation.rescore import RescoreResult, SetCheck, Verification

T = TypeVar("T")
Loading = Callable[[], AbstractContextManager[None]]
"""Shows progress while torch is imported."""
PageWriter = Callable[[Path], object]
"""Writes report.html of an evaluation's folder."""
ALONE = {"rescore": "--rescore", "verify": "--verify", "check_set": "--check-set"}
"""Modes that take no recipe."""
SHOWN = 20
"""The number of changed verdicts that are listed."""


def run(options: argparse.Namespace, rest: Sequence[str], *, loading: Loading, write_page: PageWriter) -> int:
    """Run the mode that the options choose. `rest` are recipe fields."""
    alone = next((name for name in ALONE if getattr(options, name) is not None), None)
    if alone is not None:
        return _run_mode(alone, options, rest, loading, write_page)
    if options.recipe is None:
        raise ConfigError(
            f"`rocstar eval` needs a run, a model's folder, a recipe, or one of {', '.join(ALONE.values())}"
        )
    if options.resume and options.out is None:
        raise ConfigError("--resume needs --out DIR, the folder of the evaluation")
    if options.path is not None and len(options.set) != 1:
        raise ConfigError("--path is the copy of one set. Pass exactly one --set NAME.")
    path = options.path or ""
    sets = ", ".join(f"{{ set = {json.dumps(name)}, path = {json.dumps(path)} }}" for name in options.set)
    recipe = recipe_of(options.recipe, options.model, [*([f"--eval=[{sets}]"] if options.set else []), *rest])
    if not options.dry_run:
        return _evaluate(options, recipe, loading, write_page)
    from rocstar.train.evaluation.benchmarks.registry import load_tasks_of
    from rocstar.train.plan.dry_run import dry_run_alone

    return dry_run_alone(
        recipe, options.model, evaluates=True, out=options.out, as_json=options.json, built_in=load_tasks_of
    )


def _evaluate(options: argparse.Namespace, recipe: Recipe, loading: Loading, write_page: PageWriter) -> int:
    with loading():
        from rocstar.train.evaluation.saved_model import evaluate_model

    found = evaluate_model(
        recipe,
        options.model,
        limit=options.limit,
        out=options.out,
        resume=options.resume,
        is_own=not options.set,
        write_page=write_page,
    )
    if options.json:
        metrics: dict[str, Any] = {"by_source": {}}
        for name, result in found.results.items():
            metrics |= result.metrics(name)
            metrics["by_source"] |= result.by_source
        print(json.dumps(metrics | {"seed": found.seed, "model": found.model, "recipe": found.recipe}))
        return 0
    for name, one in found.results.items():
        passed = "no task has k attempts" if one.pass_at_k is None else f"{one.pass_at_k:.3f}"
        print(name)
        print(f"  avg@{one.k}   {one.avg:.3f}  95% interval [{one.ci_low:.3f}, {one.ci_high:.3f}]")
        print(f"  pass@{one.k}  {passed}  over {one.num_tasks} tasks, {one.failed} attempts failed")
        for source, value in one.by_source.items():
            if source != name:
                print(f"    {source}  {value:.3f}")
    return 0


def _run_mode(
    mode: str, options: argparse.Namespace, rest: Sequence[str], loading: Loading, write_page: PageWriter
) -> int:
    option = ALONE[mode]
    if options.recipe is not None or rest:
        raise ConfigError(f"{option} takes no recipe and no recipe field, but {options.recipe or rest[0]!r} was given")
    if options.set or options.model or options.resume or (options.path and mode != "check_set"):
        raise ConfigError(f"{option} can be combined only with --json{', --out' if mode == 'rescore' else ''}")
    if mode == "verify":
        with loading():
            from rocstar.train.evaluation.rescore import verify

        return _print_verified(_run_to_end(verify(options.verify)), options)
    if mode == "check_set":
        from rocstar.train.evaluation.rescore import check_set

        return _print_checked(_run_to_end(check_set(options.check_set, options.path or "")), options)
    from rocstar.train.evaluation.rescore import FinishedEvaluation, rescore, rescore_into

    stored = FinishedEvaluation.open(options.rescore)
    out = options.out
    rescoring = rescore(stored, None) if out is None else rescore_into(stored, out, write_page)
    return _print_rescored(_run_to_end(rescoring), options)


def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    from rocstar.engine.progress.status import StatusLine

    with StatusLine(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _print_rescored(found: RescoreResult, options: argparse.Namespace) -> int:
    after = {name: result.avg for name, result in found.after.items()}
    if options.json:
        changed = {name: len(lines) for name, lines in found.changed.items()}
        summary = {"attempts": found.attempts, "changed": changed, "before": found.before, "after": after}
        print(json.dumps(summary))
        return 0
    print(f"{found.attempts} attempts judged again")
    for name, lines in found.changed.items():
        was = found.before.get(name)
        now = f", avg {was:.3f} -> {after[name]:.3f}" if was is not None and name in after else ""
        print(f"  {name}: {len(lines)} verdicts changed{now}")
        for line in lines[:SHOWN]:
            print(f"    {line}")
    return 0


def _print_verified(found: Verification, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"ok": not found.differences, **dataclasses.asdict(found)}))
        return int(bool(found.differences))
    for line in found.unchecked:
        print(f"# not checked: {line}")
    for line in found.differences:
        print(line)
    if not found.differences:
        print(f"nothing differs; {found.attempts} attempts judged again")
    return int(bool(found.differences))


def _print_checked(found: SetCheck, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"ok": found.is_right, **dataclasses.asdict(found)}))
        return int(not found.is_right)
    known = {True: "the known rows", False: "other rows than the known ones", None: "no digest of the rows is known"}
    print(f"{found.name}: {known[found.is_known]} (digest {found.digest[:16]})")
    golds = f"{found.golds - len(found.refused)} of {found.golds} golds found right"
    print(f"  {golds if found.golds else 'no golds: its questions have no unique answer'}")
    print(f"  {found.near_misses - len(found.accepted)} of {found.near_misses} near misses found wrong")
    for task in (*found.refused, *found.accepted):
        print(f"    misjudged: {task}")
    return int(not found.is_right)
