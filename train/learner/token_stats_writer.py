"""Token statistics of an update, written beside the step's records.

    Learner ──each microbatch──> TokenStatsBuffer ──after the step──> TokenStatsWriter ──> step_N.rR.learned

Every rank writes its own tokens (engine/record/learned.py) in a thread, without communication. The next step
waits for the file of the one before, the end of the run for the last. A full disk loses the statistics and
does not end the run: no update uses them.
"""

from collections.abc import Sequence
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
class TokenStatsPath:
    """The path of a step's token statistics: the folder of its records, which every rank sees."""

    folder: Path
    step: int


@dataclass(slots=True)
class TokenStatsBuffer:
    """The token statistics of one batch on one rank, by trajectory; each trajectory is added at most once."""

    by_name: dict[str, LearnedTokens] = field(default_factory=dict)

    def add(self, micro: MicroBatch, *, logprobs_T: Tensor, entropy_T: Tensor, code_T: Tensor) -> None:
        """Add a microbatch of an update."""
        current_T = _column(logprobs_T)
        start_T = current_T if micro.old_logprobs_T is None else _column(micro.old_logprobs_T)
        self._add(micro, start_T, _column(entropy_T), current_T - start_T, _column(code_T))

    def add_measured(self, micros: Sequence[MicroBatch]) -> None:
        """Add microbatches that were measured at the batch start and not learned: the gate paused."""
        for micro in micros:
            assert micro.old_logprobs_T is not None, "it was not measured"
            start_T = _column(micro.old_logprobs_T)
            zeros_T = np.zeros_like(start_T)
            self._add(micro, start_T, zeros_T + np.nan, zeros_T, zeros_T)

    def _add(self, micro: MicroBatch, start_T: Column, entropy_T: Column, log_ratio_T: Column, code_T: Column) -> None:
        """Add the trajectories of a microbatch that have tokens with loss."""
        gap_T = start_T - _column(micro.rollout_logprobs_T)
        ends = np.cumsum(micro.targets_S)[:-1]
        columns = (gap_T, entropy_T, log_ratio_T, code_T.astype(np.uint8))
        parts = zip(micro.names_S, *(np.split(column_T, ends) for column_T in columns), strict=True)
        for name, gaps, entropies, log_ratios, codes in parts:
            if len(gaps):
                self.by_name[name] = LearnedTokens(gaps=gaps, entropies=entropies, log_ratios=log_ratios, codes=codes)


def _column(values_T: Tensor) -> Column:
    found: Column = values_T.detach().cpu().numpy()
    return found


class TokenStatsWriter:
    """Writes one rank's token statistics in a thread. Invariant: at most one step is being written."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="token_stats")
        self._writing: Future[str] | None = None

    def begin(self, path: TokenStatsPath, stats: TokenStatsBuffer) -> None:
        """Write the statistics of a step in the thread; earlier ones must be settled."""
        assert self._writing is None, "a step is still being written"
        self._writing = self._thread.submit(self._write, path, stats)

    def settle(self) -> str:
        """Wait for the write in flight; return its error, or "" without one."""
        writing, self._writing = self._writing, None
        return "" if writing is None else writing.result()

    def close(self) -> None:
        """Wait for the last write and end the thread."""
        self.settle()
        self._thread.shutdown()

    def _write(self, path: TokenStatsPath, stats: TokenStatsBuffer) -> str:
        try:
            write_learned(path.folder, stats.by_name, step=path.step, rank=self._rank, ranks=self._ranks)
        except OSError as error:
            file = learned_path(path.folder, path.step, self._rank)
            return f"what the learner made of step {path.step} could not be written to {file}: {error}"
        return ""
