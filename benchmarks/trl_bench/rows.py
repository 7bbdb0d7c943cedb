"""The batch that both sides learn from: trajectory records with their advantages.

    equal     made up, fixed seed: every row has a prompt of 32 tokens shared by its siblings, then 32 tokens
              of the policy, 48 of a tool and 16 of the policy; token ids are uniform
    recorded  one step of a run, all siblings of all its groups, advantages over the whole group

Both are written as trajectory records of version 1. What the peer gets is made from the same records.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.engine.record.reading import Verdict, from_record, read_records, to_record, write_records
from rocstar.engine.types import (
    FinishReason,
    Origin,
    Scored,
    Segment,
    Task,
    Trajectory,
    TrajectoryKey,
    Turn,
    VersionSpan,
)
from rocstar.train.algorithm.advantages import has_no_signal
from rocstar.train.algorithm.advantages.grpo import group_advantages

PARTS = ((Origin.prompt, 32), (Origin.policy, 32), (Origin.tool, 48), (Origin.policy, 16))
"""The segments of a row of equal length: half of what comes behind the prompt is tool output."""
FIRST_ID = 16
"""Below it lie special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows in the order of their groups; `advantages` has one per trajectory."""

    name: str
    trajectories: list[Trajectory]
    advantages: list[float]

    def about(self) -> dict[str, float]:
        """What kind of batch it is. Shares are of all tokens, prompts included, unless named otherwise."""
        rows = self.trajectories
        tokens = sum(len(t.ids) for t in rows)
        behind_prompt = sum(t.response_length for t in rows)
        policy = sum(t.num_policy_tokens for t in rows)
        longest = max(t.prompt_length for t in rows) + max(t.response_length for t in rows)
        return {
            "rows": len(rows),
            "groups": len({t.task.id for t in rows}),
            "tokens": tokens,
            "longest_row": max(len(t.ids) for t in rows),
            "prompt_share": round(1 - behind_prompt / tokens, 3),
            "tool_share_behind_prompt": round(1 - policy / behind_prompt, 3),
            "padding_share_of_one_rectangle": round(1 - tokens / (len(rows) * longest), 3),
            "shared_prefix_share": round(
                1 - distinct_prefixes([tuple(t.ids.tolist()) for t in rows]) / tokens, 3
            ),
        }


def distinct_prefixes(rows: Sequence[Sequence[int]]) -> int:
    """Number of nodes of the tree that the rows make: tokens left if common beginnings counted once."""
    ordered = sorted(tuple(row) for row in rows)
    before: tuple[int, ...] = ()
    count = 0
    for row in ordered:
        pairs = enumerate(zip(row, before, strict=False))
        common = next((k for k, (a, b) in pairs if a != b), min(len(row), len(before)))
        count += len(row) - common
        before = row
    return count


def equal(vocabulary: int, *, groups: int, siblings: int, shared_prompts: bool = True) -> Batch:
    """Rows without padding. With `shared_prompts` false every row has a prompt of its own, as no run has."""
    rng = random.Random(7)
    rows, advantages = [], []
    for group in range(groups):
        task = Task(id=f"equal{group}", source="synthetic", question="", answer="")
        prompt = _ids(rng, vocabulary, PARTS[0][1])
        for sibling in range(siblings):
            if not shared_prompts:
                prompt = _ids(rng, vocabulary, PARTS[0][1])
            rows.append(_row(task, sibling, prompt, vocabulary, rng))
            advantages.append(rng.gauss(0.0, 1.0))
    name = "equal" if shared_prompts else "equal prompts apart"
    return Batch(name=name, trajectories=rows, advantages=advantages)


def _ids(rng: random.Random, vocabulary: int, count: int) -> list[int]:
    return [rng.randrange(FIRST_ID, vocabulary) for _ in range(count)]


def _row(task: Task, sibling: int, prompt: list[int], vocabulary: int, rng: random.Random) -> Trajectory:
    ids, segments, logprobs = list(prompt), [], [None] * len(prompt)  # type: list[int], list[Segment], Any
    for number, (origin, length) in enumerate(PARTS):
        start = sum(n for _, n in PARTS[:number])
        segments.append(Segment(start=start, end=start + length, origin=origin))
        if number:
            ids += _ids(rng, vocabulary, length)
            logprobs += [-6.0 if origin is Origin.policy else None] * length
    policy = [s for s in segments if s.origin is Origin.policy]
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=sibling),
        task=task,
        ids=tuple(ids),
        logprobs=tuple(logprobs),
        segments=tuple(segments),
        version_spans=tuple(VersionSpan(start=s.start, end=s.end, version=0) for s in policy),
        turns=tuple(Turn(start=s.start, end=s.end, text="", stopped=True) for s in policy),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=0.0, method="none"),
    )


def recorded(path: Path) -> Batch:
    """All scored rows of one step's record file; groups without a signal stay, with advantage 0."""
    groups: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for record in read_records(path):
        trajectory = from_record(record)
        if isinstance(trajectory.outcome, Scored):
            groups[trajectory.task.id].append(trajectory)
    rows: list[Trajectory] = []
    advantages: list[float] = []
    for group in groups.values():
        rewards = [t.outcome.reward for t in group if isinstance(t.outcome, Scored)]
        rows += group
        advantages += [0.0] * len(group) if has_no_signal(rewards) else group_advantages(rewards)
    return Batch(name="recorded", trajectories=rows, advantages=advantages)


def write(batch: Batch, path: Path) -> None:
    """As trajectory records, every row kept."""

    def verdict(advantage: float) -> Verdict:
        return Verdict(bucket="kept", penalty_error=None, penalty_format=None, advantage=advantage)

    write_records(
        path,
        (
            to_record(t, verdict(a), stage=batch.name, num_answers=0, decode=lambda ids: "")
            for t, a in zip(batch.trajectories, batch.advantages, strict=True)
        ),
    )


def read(path: Path) -> Batch:
    """What `write` wrote."""
    records = list(read_records(path))
    return Batch(
        name=str(records[0]["stage"]),
        trajectories=[from_record(record) for record in records],
        advantages=[float(record["advantage"]) for record in records],
    )


def for_peer(batch: Batch) -> list[dict[str, Any]]:
    """Plain lists: prompt, completion, 1 on the policy's tokens of the completion, advantage."""
    rows = []
    for trajectory, advantage in zip(batch.trajectories, batch.advantages, strict=True):
        begin = trajectory.prompt_length
        rows.append(
            {
                "prompt": trajectory.ids[:begin].tolist(),
                "completion": trajectory.ids[begin:].tolist(),
                "mask": trajectory.loss_mask()[begin:].astype(int).tolist(),
                "advantage": advantage,
            }
        )
    return rows
