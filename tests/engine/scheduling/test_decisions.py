"""Our policy decides as it was recorded: a change of data structures or arithmetic changes no command."""

import pytest

from rocstar.engine.scheduling.events import Drop, Grant, Left, Preempted, ReplicaDown, TurnReady
from tests.engine.scheduling import decision_streams as streams

LOGS = streams.load()


@pytest.mark.parametrize("name", streams.CASES)
def test_decisions_are_those_that_were_recorded(name: str) -> None:
    found = streams.replay(LOGS[name], **streams.CASES[name].tunables)
    assert found is None, (
        f"after event {found.number} of {name} ({found.event}) the policy commands {found.now}, recorded is "
        f"{found.recorded}; if this is meant, run python tests/engine/scheduling/decision_streams.py"
    )


@pytest.mark.parametrize("name", ["paper/tight", "tool-heavy/tight", "paper/normal"])
def test_a_replay_finds_a_changed_decision(name: str) -> None:
    assert streams.replay(LOGS[name], safety=1.0) is not None


def test_the_streams_hold_everything_that_the_policy_does() -> None:
    """Pauses, moves at a tool call, admissions behind a queue, retractions, failures; a few hundred lives."""
    pauses = moves = later = preempted = downs = cancelled = lives = 0
    for log in LOGS.values():
        homes: dict[str, int] = {}
        for event, commands in log:
            preempted += isinstance(event, Preempted)
            downs += isinstance(event, ReplicaDown)
            lives += isinstance(event, Left)
            cancelled += isinstance(event, Left) and not event.finished
            if isinstance(event, ReplicaDown):
                homes = {traj: home for traj, home in homes.items() if home != event.replica}
            for command in commands:
                subject = isinstance(event, TurnReady) and command.traj == event.traj
                pauses += isinstance(command, Drop)
                if isinstance(command, Grant):
                    moves += subject and homes.get(command.traj, command.replica) != command.replica
                    later += not subject
                    homes[command.traj] = command.replica
                else:
                    homes.pop(command.traj, None)
    counts = {
        "pauses": pauses,
        "moves": moves,
        "later": later,
        "preempted": preempted,
        "downs": downs,
        "cancelled": cancelled,
    }
    assert all(count > 3 for count in counts.values()) and lives > 500, counts
