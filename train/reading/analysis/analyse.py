"""The work of `rocstar analyse`: trajectories through the learner's forward into sums and estimates."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocstar.engine.progress.progress import working
from rocstar.engine.types import Trajectory
from rocstar.train.evaluation.saved_model import TokenScorer, TokenScores
from rocstar.train.reading.analysis.statistics import estimates
from rocstar.train.reading.analysis.statistics.estimates import Floats, Lead, Tally
from rocstar.train.reading.analysis.token_classes import CLASSES, Decode, PhraseCounts, TurnTokens, split_turns
from rocstar.train.reading.analysis.trajectory_selection import AnalysisSource, read_chosen, select_trajectories

AT_A_TIME: Final = 16
"""Trajectories in memory."""
SHOWN_EACH: Final = 2
"""Trajectories of each kind that are shown in full."""
MAX_SHOWN_TOKENS: Final = 16_384
KINDS: Final = ("continues after a good tool response", "continues after a failing tool response", "calls no tool")
"""The kinds of trajectory in the order of the page; one with both responses is of the second."""

COMPARISONS: Final = {"any": (Lead.ok, Lead.error), "ok": (Lead.ok,), "error": (Lead.error,)}
"""The tool results that precede the tokens of each comparison with the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTrajectory:
    """A trajectory that is shown in full, with the classes of its tokens."""

    trajectory: Trajectory
    why: str
    turns: list[TurnTokens]
    entropy_N: Floats
    top_N: Floats


@dataclass(slots=True, kw_only=True)
class ScoreMismatch:
    """The difference of log-probs under these weights and those of the rollout."""

    largest: float = 0.0
    total: float = 0.0
    count: int = 0

    def add(self, trajectory: Trajectory, scores: TokenScores) -> None:
        rollout_N = trajectory.logprobs[trajectory.loss_mask()].astype(float)
        known_N = ~np.isnan(rollout_N)
        apart = np.abs(rollout_N[known_N] - scores.logprob_N[known_N])
        if len(apart):
            self.largest = max(self.largest, float(apart.max()))
            self.total += float(apart.sum())
            self.count += len(apart)

    @property
    def mean(self) -> float:
        """NaN if the records have no log-probs."""
        return self.total / self.count if self.count else math.nan


@dataclass(slots=True, kw_only=True)
class Analysis:
    """The result of an analysis."""

    source: AnalysisSource
    window: int
    num_trajectories: int
    num_tasks: int
    num_tokens: int
    mean_entropy: float
    shares: list[estimates.ClassShare]
    """In the order of CLASSES."""
    behind: dict[str, estimates.ControlComparison]
    """By the name of the comparison."""
    profiles: dict[Lead, list[estimates.BootstrapEstimate]]
    wordings: PhraseCounts
    mismatch: ScoreMismatch
    num_turns: int
    num_short_turns: int
    """Turns with first tokens only: their text and calls are in no other class."""
    shown: list[ShownTrajectory]
    decode: Decode


def analyse(source: AnalysisSource, *, number: int, window: int, seed: int) -> Analysis:
    """Analyse at most `number` trajectories of a source. ConfigError for an unusable model or record."""
    rows = select_trajectories(source.file, number, seed=seed)
    scorer = TokenScorer(source.checkpoint, threads=source.threads)
    tally, wordings, mismatch = Tally(len(CLASSES)), PhraseCounts(), ScoreMismatch()
    num_turns, num_short_turns = 0, 0
    shown: dict[str, list[ShownTrajectory]] = {why: [] for why in KINDS}
    with working("scoring tokens", unit="trajectories", total=len(rows)) as work:
        for trajectory, scores in _scored(source, rows, scorer):
            turns = list(split_turns(trajectory, scorer.text, window=window))
            top_N = tally.add(
                trajectory.task.id,
                scores.entropy_N,
                np.concatenate([turn.class_U for turn in turns]),
                np.concatenate([np.full(len(turn.ids), turn.lead) for turn in turns]),
                np.concatenate([np.arange(len(turn.ids)) for turn in turns]),
            )
            wordings.add(trajectory.task.id, turns, top_N)
            mismatch.add(trajectory, scores)
            num_turns += len(turns)
            num_short_turns += sum(len(turn.ids) <= window for turn in turns)
            leads = {turn.lead for turn in turns}
            why = KINDS[1 if Lead.error in leads else 0 if Lead.ok in leads else 2]
            if len(shown[why]) < SHOWN_EACH and len(trajectory.ids) <= MAX_SHOWN_TOKENS:
                one = ShownTrajectory(
                    trajectory=trajectory, why=why, turns=turns, entropy_N=scores.entropy_N, top_N=top_N
                )
                shown[why].append(one)
            work.done += 1
    draws_BM = estimates.draw_tasks(tally.num_tasks, np.random.default_rng(seed))
    tokens, _, nats = tally.by_class.sum((1, 2)).tolist()
    return Analysis(
        source=source,
        window=window,
        num_trajectories=tally.num_trajectories,
        num_tasks=tally.num_tasks,
        num_tokens=int(tokens),
        mean_entropy=nats / tokens,
        shares=estimates.class_shares(tally, draws_BM),
        behind={
            name: estimates.compare_with_control(tally, leads, window, draws_BM) for name, leads in COMPARISONS.items()
        },
        profiles={lead: estimates.profile(tally, lead, draws_BM) for lead in Lead},
        wordings=wordings,
        mismatch=mismatch,
        num_turns=num_turns,
        num_short_turns=num_short_turns,
        shown=[one for kept in shown.values() for one in kept],
        decode=scorer.text,
    )


def _scored(
    source: AnalysisSource, rows: Sequence[int], scorer: TokenScorer
) -> Iterator[tuple[Trajectory, TokenScores]]:
    trajectories = read_chosen(source.file, rows)
    while part := list(itertools.islice(trajectories, AT_A_TIME)):
        yield from zip(part, scorer.score(part, temperature=source.temperature), strict=True)
