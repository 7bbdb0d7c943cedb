"""Early ends of siblings (rl.end_early): kept sets with and without, and what a step saves in the simulator.

    python benchmarks/early_ends.py [--groups 100000] [--tasks 512] [--out FILE]

Groups of N = 32 and G = 16: a task's solve rate is uniform, a wrong attempt is 1.3 times as long, one in fifty fails,
and each of a correct one's 0 to 6 calls fails with probability 0.1. The step is the simulator's workload `paper`;
attempts at its limit are wrong. Exit code 1: a kept set differs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping

from report import claim, finish, result_parser

from rocstar.engine.sim.cost import MI300X_14B, MI300X_14B_KV_TOKENS, Cluster, ReplicaModel
from rocstar.engine.sim.simulate import Outcome, simulate
from rocstar.engine.sim.workload import earlier_step, generate
from rocstar.train.algorithm.roc import Penalty, RocMode, can_end, choose_siblings, roc_penalty

SIZE, KEEP = 32, 16
MODES = (RocMode.paper, RocMode.uniform, RocMode.sort)
Outcomes = Mapping[int, tuple[bool, Penalty] | None]
"""By sibling; None: it failed."""


def outcome(rng: random.Random, rate: float) -> tuple[bool, Penalty] | None:
    if rng.random() < 0.02:
        return None
    calls = rng.randint(0, 6)
    errors = sum(rng.random() < 0.1 for _ in range(calls))
    penalty = roc_penalty(num_tool_calls=calls, num_tool_errors=errors, num_answers=1, num_turns=calls + 1)
    return rng.random() < rate, penalty


def kept(outcomes: Outcomes, keys: Mapping[int, float], mode: RocMode) -> set[int]:
    scored = [(i, *one) for i, one in sorted(outcomes.items()) if one is not None]
    correct = [one[1] for one in scored]
    decisions = choose_siblings(
        [float(c) for c in correct],
        correct,
        [one[2] for one in scored],
        [keys[one[0]] for one in scored],
        keep=KEEP,
        mode=mode,
    )
    return {one[0] for one, decision in zip(scored, decisions, strict=True) if decision.kept}


def end_early(done: Outcomes, running: set[int], keys: Mapping[int, float], mode: RocMode) -> set[int]:
    scored = {i: (one[0], one[1].total) for i, one in done.items() if one is not None}
    return can_end(keys, scored, running, keep=KEEP, mode=mode)


def compare_groups(groups: int) -> tuple[int, dict[RocMode, int], dict[RocMode, float]]:
    """Return the groups whose kept sets differ, and the ended siblings and their share of the tokens by mode."""
    rng, differing = random.Random(38), 0
    ended, saved, written = dict.fromkeys(MODES, 0), dict.fromkeys(MODES, 0.0), dict.fromkeys(MODES, 0.0)
    for number in range(groups):
        mode, rate = MODES[number % len(MODES)], rng.random()
        keys = {i: rng.expovariate(1.0) for i in range(SIZE)}
        outcomes = {i: outcome(rng, rate) for i in range(SIZE)}
        lengths = {i: rng.lognormvariate(0.0, 0.5) * (1.0 if one and one[0] else 1.3) for i, one in outcomes.items()}
        running, done = set(range(SIZE)), dict[int, tuple[bool, Penalty] | None]()
        for i in sorted(lengths, key=lambda i: lengths[i]):
            if i not in running:
                continue
            running.remove(i)
            done[i] = outcomes[i]
            gone = end_early(done, running, keys, mode)
            running -= gone
            ended[mode] += len(gone)
            saved[mode] += sum(lengths[k] - lengths[i] for k in gone)
        written[mode] += sum(lengths.values())
        differing += kept(done, keys, mode) != kept(outcomes, keys, mode)
    return differing, ended, {mode: saved[mode] / (written[mode] or 1.0) for mode in MODES}


def simulate_step(tasks: int, mode: RocMode | None) -> tuple[Outcome, int]:
    """Return the step of the paper's workload, with early ends of a mode, and how many ended early."""
    rng, workload = random.Random(38), generate("paper", tasks=tasks)
    rates = {t.group: rng.random() for t in workload.trajectories}
    groups: dict[str, list[str]] = {}
    outcomes, keys = {}, {}
    for t in workload.trajectories:
        one = outcome(rng, 0.0 if t.response_tokens == t.max_tokens else rates[t.group])
        outcomes[t.traj], keys[t.traj] = one, rng.expovariate(1.0)
        groups.setdefault(t.group, []).append(t.traj)
    done: dict[str, dict[int, tuple[bool, Penalty] | None]] = {group: {} for group in groups}
    gone: set[str] = set()

    def ends(traj: str) -> list[str]:
        group = traj.rpartition("/")[0]
        names = groups[group]
        done[group][names.index(traj)] = outcomes[traj]
        running = {i for i, name in enumerate(names) if i not in done[group] and name not in gone}
        assert mode is not None
        found = [names[i] for i in end_early(done[group], running, {i: keys[n] for i, n in enumerate(names)}, mode)]
        gone.update(found)
        return found

    cluster = Cluster(model=ReplicaModel(kv_tokens=MI300X_14B_KV_TOKENS, cost=MI300X_14B), replicas=max(1, tasks // 8))
    history = earlier_step("paper", tasks, SIZE, 0)
    made, _ = simulate(workload, cluster, "predictive", history=history, ends=None if mode is None else ends)
    return made, len(gone)


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=512, help="of the simulated step, on a replica for every 8")
    options = parser.parse_args()
    differing, ended, saved = compare_groups(options.groups)
    claims = [claim(f"of {options.groups:,} groups, those that keep other siblings", differing, "groups", at_most=0)]
    for mode in MODES:
        per_group = ended[mode] / (options.groups / len(MODES))
        claims.append(claim(f"{mode}: siblings that end early, per group of {SIZE}", per_group, "siblings"))
        claims.append(claim(f"{mode}: tokens that they leave out", 100 * saved[mode], "%"))
    whole, _ = simulate_step(options.tasks, None)
    for mode in MODES[:2]:
        step, count = simulate_step(options.tasks, mode)
        what = f"simulated step of {options.tasks * SIZE:,} trajectories, {mode}"
        claims += [
            claim(f"{what}: trajectories that end early", count, "trajectories"),
            claim(f"{what}: tokens saved", 100 * (1 - step.generated_tokens / whole.generated_tokens), "%"),
            claim(f"{what}: makespan saved", 100 * (1 - step.makespan_s / whole.makespan_s), "%"),
            claim(f"{what}: busy replica time saved", 100 * (1 - busy_s(step) / busy_s(whole)), "%"),
        ]
    return finish("early_ends", {}, claims, options.out, seeds=[38])


def busy_s(step: Outcome) -> float:
    return step.utilisation * step.makespan_s


if __name__ == "__main__":
    sys.exit(main())
