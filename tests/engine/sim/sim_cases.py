"""Small random workloads, and a scheduler that does what no sane one would."""

from __future__ import annotations

import random

from rocstar.engine.scheduling.events import Command, Drop, Event, Grant, Left, ReplicaUp, TurnEnded, TurnReady
from rocstar.engine.sim.cost import Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.workload import TrajectoryWork, TurnWork, Workload


def random_cost(rng: random.Random, *, mixed: bool) -> CostModel:
    return CostModel(
        forward_s=rng.uniform(1e-3, 1e-2),
        request_s=rng.uniform(0, 1e-3),
        context_token_s=rng.uniform(0, 1e-4),
        prefill_token_s=rng.uniform(0, 1e-3),
        prefill_pair_s=rng.uniform(0, 1e-5),
        mixed=mixed,
        draft_tokens=rng.choice([1.0, 2.5]),
        draft_rows=rng.choice([0, 1, 3]),
    )


def random_workload(rng: random.Random, *, trajectories: int, siblings: int, max_turns: int = 4) -> Workload:
    made: list[TrajectoryWork] = []
    prompts = rng.sample(range(3, 60), trajectories)
    for index in range(trajectories):
        turns = [
            TurnWork(rng.randint(1, 40), rng.randint(0, 12), rng.choice([0.0, 1.0]) * rng.uniform(0.0, 0.5))
            for _ in range(rng.randint(0, max_turns - 1))
        ]
        turns.append(TurnWork(rng.randint(1, 40), 0, 0.0))
        used = sum(t.new_tokens + t.tool_tokens for t in turns)
        made.append(
            TrajectoryWork(
                traj=f"g{index // siblings}/{index % siblings}",
                group=f"g{index // siblings}",
                stage="s",
                prompt_tokens=prompts[index // siblings],
                max_tokens=used + rng.choice([0, 5, 60]),
                turns=tuple(turns),
            )
        )
    return Workload(name="random", trajectories=tuple(made))


def random_cluster(rng: random.Random, workload: Workload, *, mixed: bool, tight: bool) -> Cluster:
    pool = workload.limit_tokens + rng.randint(1, 120 if tight else 2000)
    model = ReplicaModel(
        kv_tokens=pool,
        cost=random_cost(rng, mixed=mixed),
        max_running=rng.choice([2, 3, 64]),
        chunk_tokens=rng.choice([7, 16, 512]),
        conservativeness=rng.choice([0.0, 0.3, 1.0]),
        clip_tokens=rng.choice([0, 4, 30, 4096]),
        share_prompts=rng.random() < 0.7,
        keep_prompts=rng.random() < 0.7,
    )
    return Cluster(model=model, replicas=rng.randint(1, 3), replicas_per_node=2, tool_workers=rng.choice([1, 100]))


def one(traj: str, *turns: tuple[int, int, float], group: str = "g", prompt: int = 10) -> TrajectoryWork:
    work = tuple(TurnWork(*turn) for turn in turns)
    limit = sum(t.new_tokens + t.tool_tokens for t in work)
    return TrajectoryWork(traj=traj, group=group, stage="s", prompt_tokens=prompt, max_tokens=limit, turns=work)


class Chaos:
    """Grants at random, now or at a later event, moves trajectories about and drops their KV."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.replicas = 0
        self.homes: dict[str, int] = {}
        self.held: list[str] = []
        self.running = 0

    def handle(self, event: Event) -> list[Command]:
        commands: list[Command] = []
        match event:
            case ReplicaUp():
                self.replicas += 1
            case TurnReady(traj=traj):
                self.held.append(traj)
            case TurnEnded(traj=traj):
                self.running -= 1
                if self.rng.random() < 0.15:
                    commands.append(Drop(traj=traj, replica=self.homes.pop(traj)))
            case Left():
                pass
        for traj in list(self.held):
            if self.rng.random() < 0.8 or not self.running:
                self.held.remove(traj)
                home = self.homes.get(traj)
                if home is None or self.rng.random() < 0.2:
                    home = self.rng.randrange(self.replicas)
                self.homes[traj] = home
                self.running += 1
                commands.append(Grant(traj=traj, replica=home))
        return commands
