"""`rocstar doctor RUN`: arguments and output. Exit codes: 0 no active alarm but advice, 1 an active alarm of
liveness or health, or a dead run, 2 no run, or a damaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstar.sandbox.extras import shell_command

if TYPE_CHECKING:
    from rocstar.train.reading.diagnosis.diagnose import Diagnosis
    from rocstar.train.reading.diagnosis.ringing import Episode


def examine(run: Path, *, as_json: bool) -> int:
    """Print the diagnosis of a run; return 1 if an alarm other than advice is active, else 0."""
    from rocstar.train.reading.diagnosis.diagnose import diagnose

    found = diagnose(run)
    print(json.dumps(as_plain(found)) if as_json else as_text(found))
    return int(found.is_ill)


def as_plain(found: Diagnosis) -> dict[str, Any]:
    """One JSON object: `ill`, `state`, the alarms `standing` and `over` with evidence and what to do."""
    return {
        "run": str(found.run),
        "ill": found.is_ill,
        "steps": found.steps,
        "state": {"name": found.state, "told": found.state_note},
        "standing": [_plain(found, episode) for episode in found.standing],
        "over": [_plain(found, episode) for episode in found.over],
        "not_looked_at": found.not_looked_at,
    }


def _plain(found: Diagnosis, episode: Episode) -> dict[str, Any]:
    alarm = episode.alarm
    return {
        "alarm": alarm.name,
        "kind": alarm.kind,
        "says": alarm.says,
        "first_step": episode.first,
        "last_step": episode.last,
        "seen": episode.seen,
        "now": episode.now,
        "definition": alarm.definition,
        "source": alarm.source,
        "todo": alarm.todo,
        "trajectories": found.shown.get(alarm.name, []),
    }


def as_text(found: Diagnosis) -> str:
    """Lines for people: liveness first."""
    from rocstar.train.reading.diagnosis.diagnose import LEAST_STEPS
    from rocstar.train.reading.diagnosis.ringing import KINDS

    note = f": {found.state_note}" if found.state_note else ""
    lines = [f"{found.run}: {found.steps} RL steps, {found.state}{note}"]
    if found.steps < LEAST_STEPS:
        lines.append(f"alarms compare steps with earlier ones: they need {LEAST_STEPS} RL steps")
    for kind in KINDS:
        episodes = [episode for episode in found.standing if episode.alarm.kind == kind]
        none = "too short to judge" if found.steps < LEAST_STEPS else "no active alarms"
        lines.append(f"{kind}:" + ("" if episodes else f" {none}"))
        lines += [line for episode in episodes for line in _lines(found, episode)]
    if found.over:
        over = (f"{e.alarm.name} (steps {e.first} to {e.last})" for e in found.over)
        lines.append(f"ended: {', '.join(over)}")
    if found.not_looked_at:
        missing = (f"{name} (no {metric})" for name, metric in found.not_looked_at.items())
        lines.append(f"not checked: {', '.join(missing)}")
    return "\n".join(lines)


def _lines(found: Diagnosis, episode: Episode) -> list[str]:
    alarm = episode.alarm
    lines = [f"  {alarm.name}, since step {episode.first}: {alarm.says}", f"    seen: {episode.now}"]
    if shown := found.shown.get(alarm.name):
        ids = ", ".join(one["id"] for one in shown)
        step = shown[0]["step"]
        export = shell_command("records", found.run, "--step", step, "--out", f"records_step_{step}")
        lines.append(f"    trajectories: {ids} ({export})")
    return [*lines, f"    do: {alarm.todo}"]
