"""Token statistics of an update, written beside the step's records.

    Learner ──each microbatch──> TokenMarks ──after the step──> MarksWriter's thread ──> step_N.rR.learned

Every rank writes its own tokens (engine/record/learned.py), without communication. The next step waits for
the file of the one before, the end of the run for the last. A full disk loses the statistics and does not end
the
run: no update uses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rocstar.engine.record.learned import LearnedTokens, learned_path, write_learned
from rocstar.train.learner.batch import MicroBatch

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksPlace:
    """Where the marks of a step go: the folder of its records, which every rank sees."""

    folder: Path
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _MarkedPart:
    """One microbatch's columns, T long, on the CPU."""

    names_S: Sequence[str]
    targets_S: Sequence[int]
    start_T: Column
    rollout_T: Column
    entropy_T: Column | None
    """None: it was measured, and no update was made of it."""
    log_ratio_T: Column | None
    """None: 0, as it is in a first update."""
    code_T: Column | None

    def of_each(self) -> Iterator[tuple[str, LearnedTokens]]:
        """Its trajectories that have tokens with loss, by name."""
        at = 0
        for name, number in zip(self.names_S, self.targets_S, strict=True):
            mine = slice(at, at + number)
            at += number
            if number:
                yield name, self._tokens(mine, number)

    def _tokens(self, mine: slice, number: int) -> LearnedTokens:
        def of(column: Column | None, other: float) -> Column:
            return np.full(number, other, np.float32) if column is None else column[mine]

        return LearnedTokens(
            gaps=self.start_T[mine] - self.rollout_T[mine],
            entropies=of(self.entropy_T, np.nan),
            log_ratios=of(self.log_ratio_T, 0.0),
            codes=of(self.code_T, 0).astype(np.uint8),
        )


@dataclass(slots=True)
class TokenMarks:
    """The marks of one batch on one rank; each of its trajectories is heard of at most once."""

    _parts: list[_MarkedPart] = field(default_factory=list)

    def hear(
        self,
        micro: MicroBatch,
        *,
        logprobs_T: Tensor,
        old_logprobs_T: Tensor | None,
        entropy_T: Tensor,
        code_T: Tensor,
    ) -> None:
        """A microbatch of an update; `old_logprobs_T` None: its log-probs are those of the batch start."""
        current_T = _column(logprobs_T)
        old_T = current_T if old_logprobs_T is None else _column(old_logprobs_T)
        is_first = old_logprobs_T is None
        self._parts.append(
            _MarkedPart(
                names_S=micro.names_S,
                targets_S=micro.targets_S,
                start_T=old_T,
                rollout_T=_column(micro.rollout_logprobs_T),
                entropy_T=_column(entropy_T),
                log_ratio_T=None if is_first else current_T - old_T,
                code_T=None if is_first else _column(code_T),
            )
        )

    def measured(self, micro: MicroBatch, start_logprobs_T: Tensor) -> None:
        """A microbatch that was measured at the batch start and then left alone: the gate paused."""
        self._parts.append(
            _MarkedPart(
                names_S=micro.names_S,
                targets_S=micro.targets_S,
                start_T=_column(start_logprobs_T),
                rollout_T=_column(micro.rollout_logprobs_T),
                entropy_T=None,
                log_ratio_T=None,
                code_T=None,
            )
        )

    def by_name(self) -> dict[str, LearnedTokens]:
        """Each trajectory's, by its name."""
        return {name: tokens for part in self._parts for name, tokens in part.of_each()}


def _column(values_T: Tensor) -> Column:
    found: Column = values_T.detach().cpu().numpy()
    return found


class MarksWriter:
    """Writes one rank's marks in a thread. Invariant: at most one step is being written."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="marks")
        self._writing: Future[str] | None = None

    def begin(self, place: MarksPlace, marks: TokenMarks) -> None:
        """Write them from now on; earlier ones must be settled."""
        assert self._writing is None, "a step is still being written"
        self._writing = self._thread.submit(self._write, place, marks)

    def settle(self) -> str:
        """Return when nothing is being written any more: what went wrong, empty if nothing did."""
        writing, self._writing = self._writing, None
        return "" if writing is None else writing.result()

    def close(self) -> None:
        """The last one is written; there will be no more."""
        self.settle()
        self._thread.shutdown()

    def _write(self, place: MarksPlace, marks: TokenMarks) -> str:
        try:
            write_learned(place.folder, marks.by_name(), step=place.step, rank=self._rank, ranks=self._ranks)
        except OSError as error:
            path = learned_path(place.folder, place.step, self._rank)
            return f"what the learner made of step {place.step} could not be written to {path}: {error}"
        return ""
