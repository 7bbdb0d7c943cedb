"""The invariants of the engine's state machines, over everything in them."""

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.nodes.grants import Grants
from rocstar.engine.scheduling.schedule_state import Phase


def check_schedule(scheduler: Scheduler) -> None:
    """Assert the invariants of `ScheduleState`, and that the scheduler is at no standstill."""
    state = scheduler.state
    assert state.largest_pool == max(state.pools.values(), default=None)
    running = 0
    for traj, entry in state.trajectories.items():
        assert entry.traj == traj and entry.context_tokens >= entry.prompt_tokens
        assert (traj in state.ready) == (entry.phase is Phase.ready)
        running += entry.phase is Phase.running
        assert entry.home is not None or entry.phase is not Phase.running
        homes = [r.replica for r in state.replicas.values() if traj in r.trajectories]
        assert homes == ([] if entry.home is None else [entry.home])
    assert state.ready.keys() <= state.trajectories.keys() and running == state.num_running
    for replica in state.replicas.values():
        living = [entry for entry in state.trajectories.values() if entry.home == replica.replica]
        assert replica.trajectories == {entry.traj: entry for entry in living}
        assert replica.resident_tokens == sum(entry.context_tokens for entry in living)
        assert replica.running == sum(entry.phase is Phase.running for entry in living)
    assert state.num_running or scheduler.standstill_grant() is None


def check_grants(grants: Grants) -> None:
    """Assert the invariants; costs time in proportion to everything there is."""
    at = {key: node.name for node in grants.nodes.values() for key in node.groups}
    assert at == {entry.key: entry.node for entry in grants.groups.values() if entry.node is not None}
    assert sum(len(node.groups) for node in grants.nodes.values()) == len(at)
    assert list(grants._waiting) == [key for key, entry in grants.groups.items() if entry.node is None]
    for node in grants.nodes.values():
        assert sum(node.sizes.values()) == sum(entry.size for entry in node.groups.values())
    home = grants.nodes[grants.home]
    assert home.is_up and (home.groups or len(at) == len(grants.groups))
    if grants._max_groups is not None:
        assert all(len(node.groups) <= grants._max_groups for node in grants.nodes.values())
