"""`rocstar sim TRACE` or `rocstar sim --workload NAME`: the makespan under each policy, without a GPU."""

from __future__ import annotations

import argparse
import json
import math
import runpy
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from rocstar.engine.nodes.grants import FILL, PART
from rocstar.engine.progress.progress import Work, working
from rocstar.engine.progress.status import StatusLine
from rocstar.engine.scheduling.policies import POLICIES, PolicyFactory
from rocstar.engine.sim.bound import LowerBound, lower_bound
from rocstar.engine.sim.cost import MI300X_14B, MI300X_14B_KV_TOKENS, Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.flight import SimulationError
from rocstar.engine.sim.multi_node import NodeSettings
from rocstar.engine.sim.simulate import Outcome, simulate
from rocstar.engine.sim.traces import load_trace
from rocstar.engine.sim.workload import SHAPES, Workload, earlier_step, generate, with_branches
from rocstar.sandbox.bench import table
from rocstar.sandbox.command_line import CommandParser, add_options, format_error

USAGE_ERROR, FAILED = 2, 1
HOW_LONG = (
    "All policies on a step of the default size take up to a minute of one core; a terminal shows how far it "
    "is. Fewer --policies, or fewer --tasks on fewer --replicas, take less."
)

COLUMNS = {
    "policy": "{.policy}",
    "makespan": "{.makespan_s:,.1f} s",
    "x bound": "{.ratio:.3f}",
    "busy": "{.utilisation:.1%}",
    "batch": "{.mean_batch:.1f}",
    "KV used": "{.kv_occupancy:.0%}",
    "recomputed": "{.recomputed_share:.2%}",
    "preempted": "{.preemptions:,}",
    "moved": "{.migrations:,}",
    "tail": "{.tail_s:,.1f} s",
    "half the groups": "{.first_group_s:,.1f} s",
}
"""Headings of the table, with the format of an `Outcome` in that column."""


def main(argv: Sequence[str] | None) -> int:
    """Run the verb; 0, 1 if a policy never ends the work, 2 for a mistake in the command line."""
    options = build_parser().parse_args(argv)
    try:
        return _run(options)
    except (OSError, ValueError) as error:
        print(f"rocstar sim: {format_error(error)}", file=sys.stderr)
        return USAGE_ERROR
    except SimulationError as error:
        print(f"rocstar sim: {error}", file=sys.stderr)
        return FAILED


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="rocstar sim", description=__doc__, epilog=HOW_LONG, allow_abbrev=False)
    entries = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
    entries["--workload"]["choices"] = list(SHAPES)
    add_options(parser, entries, {"policies": ",".join(POLICIES)})
    parser.set_defaults(part=PART, fill=FILL, kv_tokens=MI300X_14B_KV_TOKENS)
    return parser


def _run(options: argparse.Namespace) -> int:
    known = _load_policies(options.peers)
    names = list(known) if options.policies is None else options.policies.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"--policies: no policy is called {name!r}; there are {', '.join(known)}")
    policies = {name: known[name] for name in names}
    with StatusLine():
        found = _simulate(options, policies)
    if options.json:
        bound = found.bound
        shown = {
            "workload": found.workload.name,
            "trajectories": len(found.workload.trajectories),
            "replicas": found.cluster.replicas,
            "kv_tokens": found.cluster.model.kv_tokens,
            "bound": {"seconds": bound.seconds, "alone_s": bound.alone_s, "work_s": bound.work_s},
            "policies": [o.to_json() for o in found.outcomes],
        }
        print(json.dumps(shown))
        return 0
    ranked = sorted(found.outcomes, key=lambda outcome: outcome.makespan_s)
    rows = [tuple(form.format(outcome) for form in COLUMNS.values()) for outcome in ranked]
    print("\n".join(found.facts), table(list(COLUMNS), rows), sep="\n\n")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """The results of the simulations."""

    workload: Workload
    cluster: Cluster
    bound: LowerBound
    outcomes: Sequence[Outcome]

    @property
    def facts(self) -> list[str]:
        workload, cluster, bound = self.workload, self.cluster, self.bound
        count = len(workload.trajectories)
        groups = len({t.group for t in workload.trajectories})
        turns = sum(len(t.turns) for t in workload.trajectories)
        longest = max(t.prompt_tokens + t.response_tokens for t in workload.trajectories)
        return [
            f"{workload.name}: {count:,} trajectories in {groups:,} groups, {turns / count:.2f} turns and "
            f"{workload.generated_tokens / count:,.0f} generated tokens each; the longest has "
            f"{longest:,} tokens.",
            f"{cluster.replicas} replicas with {cluster.model.kv_tokens:,} KV tokens each. No policy can "
            f"take less than {bound.seconds:,.1f} s: the longest trajectory alone takes "
            f"{bound.alone_s:,.1f} s, all work at the best batch {bound.work_s:,.1f} s.",
        ]


def _simulate(options: argparse.Namespace, policies: Mapping[str, PolicyFactory]) -> _Results:
    with working("the work of a step"):
        workload, history = _load_work(options)
        if options.fork_rate:
            forks = partial(with_branches, rate=options.fork_rate, width=options.fork_width, seed=options.seed)
            workload, history = forks(workload), None if history is None else forks(history)
    model = ReplicaModel(
        kv_tokens=options.kv_tokens,
        cost=MI300X_14B if options.cost is None else load_cost(options.cost),
        max_running=options.max_running,
    )
    cluster = Cluster(
        model=model,
        replicas=options.replicas,
        replicas_per_node=options.replicas_per_node,
        tool_workers=options.tool_workers,
    )
    if workload.limit_tokens > cluster.model.kv_tokens:
        raise ValueError(
            f"--kv-tokens {cluster.model.kv_tokens}: a trajectory may need {workload.limit_tokens} (prompt "
            "and limit), which no replica could hold; give more KV tokens or a lower --limit-tokens"
        )
    levels = NodeSettings(part=options.part, fill=options.fill) if options.two_levels else None
    with working("the lower bound"):
        bound = lower_bound(workload, cluster)
    outcomes: list[Outcome] = []
    with working("policies", unit="trajectories") as work:
        for k, policy in enumerate(policies):
            work.what = f"{policy}, policy {k + 1} of {len(policies)}"
            outcome, _ = simulate(
                workload,
                cluster,
                policy,
                history=history,
                bound=bound,
                two_levels=levels,
                policies=policies,
                on_left=partial(_count, work, k, len(policies)),
            )
            outcomes.append(outcome)
    return _Results(workload=workload, cluster=cluster, bound=bound, outcomes=outcomes)


def _count(work: Work, run: int, runs: int, left: int, total: int) -> None:
    """Count the trajectories of run `run` of `runs`, from 0, which all have equally many."""
    work.done, work.total = run * total + left, runs * total


def _load_policies(peers: Path | None) -> Mapping[str, PolicyFactory]:
    """The policies that may be asked for: those of recipes, and those of the file `peers`."""
    if peers is None:
        return POLICIES
    try:
        found = runpy.run_path(str(peers)).get("POLICIES")
    except Exception as error:  # whatever a user's file raises
        raise ValueError(f"--peers {peers}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping) or not all(callable(make) for make in found.values()):
        raise ValueError(f"--peers {peers}: must define POLICIES, a dict from names to classes of policies")
    return {**POLICIES, **found}


def _load_work(options: argparse.Namespace) -> tuple[Workload, Workload | None]:
    """The step, and the one before it that every policy has run (unless --cold)."""
    if (options.trace is None) == (options.workload is None):
        raise ValueError("give either a trace (a run directory or a .jsonl file) or --workload, not both")
    if options.workload is not None:
        tasks, siblings = options.tasks or 512, options.siblings
        step = generate(options.workload, tasks=tasks, siblings=siblings, seed=options.seed)
        return step, None if options.cold else earlier_step(options.workload, tasks, siblings, options.seed)
    if not options.trace.exists():
        raise ValueError(f"{options.trace} does not exist; pass a run directory or a file of records")
    if not 0 <= options.tool_s < math.inf:
        raise ValueError(f"--tool-s {options.tool_s}: seconds cannot be negative or without end; give 0.3")
    workload, before = load_trace(
        options.trace,
        step=options.step,
        limit_tokens=options.limit_tokens,
        tool_s=options.tool_s,
        tasks=options.tasks,
        seed=options.seed,
    )
    return workload, None if options.cold else before


def load_cost(path: Path) -> CostModel:
    """A cost model from JSON. ValueError names a coefficient that is missing or unknown."""
    try:
        return CostModel(**json.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).removeprefix("CostModel.__init__() ")
        names = ", ".join(field.name for field in fields(CostModel))
        raise ValueError(
            f"--cost {path}: {reason}; give a JSON file of {names} (mixed and those of drafts may be absent)"
        ) from error
