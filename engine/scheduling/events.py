"""Events of a host for the scheduler, and commands of the scheduler for its host.

    host (live fleet | simulator) --event--> Scheduler.handle --> [command, ...] --> host

One trajectory's life:  Submitted, (TurnReady, <Grant>, [Preempted ...], TurnEnded) per turn, Left.
Tokens are counted in KV slots: a context of n tokens holds n of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A trajectory exists and will ask for its first turn. It never grows beyond prompt + max tokens.

    `stage` names what its length may be learned from (a training stage, an evaluation set).
    """

    traj: str
    group: str
    stage: str
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReady:
    """It wants a completion now. `context_tokens` = prompt and everything behind it, tool results too."""

    traj: str
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The completion is done, `new_tokens` behind the context it was asked with. The KV of both stays where
    it ran; the trajectory is between turns now (at a tool, or back with its host)."""

    traj: str
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """Its replica threw its KV away to make room, and will recompute it: the turn goes on there.

    `context_tokens` = all its tokens by now, those of the unfinished turn included.
    """

    traj: str
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The trajectory finished, failed or was cancelled, in any phase: its KV is free.

    `finished` is False if it failed or was cancelled: its length is no sample of the policy's lengths.
    """

    traj: str
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUp:
    """A replica takes grants from now on; its KV pool holds `kv_tokens` tokens and is empty."""

    replica: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDown:
    """A replica is gone with all its KV. The host sends a TurnReady for every turn that ran on it."""

    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen:
    """A load report of a replica: tokens in its pool, requests running and waiting on it."""

    replica: int
    used_tokens: int
    running: int
    waiting: int


Event = Submitted | TurnReady | TurnEnded | Preempted | Left | ReplicaUp | ReplicaDown | LoadSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Run the ready turn of `traj` on `replica`. KV on another replica is dropped, without a further command,
    and the whole context is computed anew."""

    traj: str
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Between turns: give up the KV of `traj` on `replica` (a pause). Its next turn computes it anew."""

    traj: str
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """No replica can ever hold this trajectory; it has left the state. `detail` says by how much."""

    traj: str
    detail: str


Command = Grant | Drop | Refuse
