"""Several nodes in the simulator: one is the single scheduler; siblings stay where they were granted."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from rocstar.engine.nodes.grants import PART
from rocstar.engine.scheduling.events import Grant
from rocstar.engine.scheduling.policies import make_policy
from rocstar.engine.sim.cost import MI300X_14B, Cluster, ReplicaModel
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.multi_node import MultiNodeScheduler, NodeSettings
from rocstar.engine.sim.simulate import simulate
from rocstar.engine.sim.workload import Workload, earlier_step, generate


def cluster_of(*, replicas: int, per_node: int) -> Cluster:
    model = ReplicaModel(kv_tokens=60_000, cost=MI300X_14B)
    return Cluster(model=model, replicas=replicas, replicas_per_node=per_node)


@pytest.fixture(scope="module")
def work() -> Workload:
    return generate("paper", tasks=12, siblings=10, seed=3)


@pytest.mark.parametrize("policy", ["predictive", "round_robin"])
def test_one_node_is_one_scheduler(work: Workload, policy: str) -> None:
    """What does not fit waits in the node's scheduler, so with room for all promises nothing differs."""
    history = earlier_step("paper", 12, 10, 3)
    cluster = cluster_of(replicas=4, per_node=4)
    alone, _ = simulate(work, cluster, policy, history=history)
    levels = MultiNodeScheduler(lambda: make_policy(policy), replicas_per_node=4, levels=NodeSettings(fill=1e9))
    for step, goes_on in ((history, False), (work, True)):
        levels.expect(Counter(each.group for each in step.trajectories))
        flight = Flight(workload=step, cluster=cluster, scheduler=levels, goes_on=goes_on).run()
    assert flight.makespan_s == alone.makespan_s


class Watched(MultiNodeScheduler):
    """Writes down who is granted where."""

    def __init__(self, levels: NodeSettings) -> None:
        super().__init__(lambda: make_policy("predictive"), replicas_per_node=2, levels=levels)
        self.nodes: defaultdict[str, set[int]] = defaultdict(set)

    def handle(self, event):  # type: ignore[no-untyped-def]
        commands = super().handle(event)
        for command in commands:
            if isinstance(command, Grant):
                self.nodes[command.traj].add(command.replica // 2)
        return commands


@pytest.mark.parametrize("fill", [1.0, 4.0])
@pytest.mark.parametrize("part", [3, PART, 10])
def test_siblings_go_where_their_part_was_granted_and_stay(work: Workload, part: int, fill: float) -> None:
    watched = Watched(NodeSettings(part=part, fill=fill))
    watched.expect(Counter(each.group for each in work.trajectories))
    Flight(workload=work, cluster=cluster_of(replicas=6, per_node=2), scheduler=watched).run()
    assert watched.nodes.keys() == {each.traj for each in work.trajectories}
    assert all(len(nodes) == 1 for nodes in watched.nodes.values()), "nobody changes the node"
    by_group: defaultdict[str, list[set[int]]] = defaultdict(list)
    for each in work.trajectories:
        by_group[each.group].append(watched.nodes[each.traj])
    for siblings in by_group.values():
        for k in range(0, len(siblings), part):
            assert all(node == siblings[k] for node in siblings[k : k + part])
    used = [len({frozenset(n) for n in siblings}) for siblings in by_group.values()]
    assert max(used) == (1 if part == 10 else 3)


def test_lengths_reach_every_nodes_scheduler(work: Workload) -> None:
    """A step in the middle of training: two levels run after an earlier one, all of it."""
    found, flight = simulate(
        work,
        cluster_of(replicas=6, per_node=2),
        "predictive",
        history=earlier_step("paper", 12, 10, 3),
        two_levels=NodeSettings(),
    )
    assert found.makespan_s > found.bound_s and all(seat.left_s is not None for seat in flight.seats)
