"""Write checkpoints in a thread during the next steps.

    begin: wait for the write before -> copy to CPU memory -> hand over | the thread: write, prune

`begin` waits for the last write, so that two never share the disk and at most one copy is in memory; `finish`
waits for the write in flight. A failed write is raised by the next `begin`, `check` or `finish`.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rocstar.train.learner import checkpoint
from rocstar.train.learner.learner import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One checkpoint to write, as every rank gets it."""

    run_dir: Path
    step: int
    progress: dict[str, Any]
    """JSON: the state for a resume."""
    keep_last: int
    keep_every: int

    @property
    def directory(self) -> Path:
        return checkpoint.step_directory(self.run_dir, self.step)


class CheckpointWriter:
    """One rank's part of writing checkpoints.

    Invariant: at most one write is in flight, and no write's failure is lost: it is raised exactly once.
    """

    def __init__(self, *, rank: int = 0, group: Any = None) -> None:
        """`group`: a process group used by the writers of all ranks only; None with one process."""
        self._rank, self._group = rank, group
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._tokenizer_files: dict[str, bytes] = {}

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """The tokenizer of all later checkpoints."""
        self._tokenizer_files = checkpoint.tokenizer_files(tokenizer)

    def begin(self, order: Order, learner: Learner) -> None:
        """Copy the learner's state and write it in the thread; every rank calls it.

        Raises:
            CheckpointError: there is no room, or there was none for the write before.
            Exception: what else made the write before fail.
        """
        self.finish()
        if self._rank == 0:
            checkpoint.check_space(order.directory, learner.model)
        snap = checkpoint.snapshot(learner, order.progress, self._tokenizer_files, rank=self._rank)
        self._writing = self._thread.submit(self._write, order, snap)

    def _write(self, order: Order, snap: checkpoint.Snapshot) -> None:
        checkpoint.write(order.directory, snap, rank=self._rank, group=self._group)
        if self._rank == 0:
            checkpoint.prune(order.run_dir, order.keep_last, keep_every=order.keep_every)

    def check(self) -> None:
        """Raise what made the last write fail, if it has failed; do not wait."""
        if self._writing is not None and self._writing.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the write in flight; raise what made it fail."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for the write in flight and end the thread; for a run that ends by another error."""
        self._thread.shutdown(wait=True)
