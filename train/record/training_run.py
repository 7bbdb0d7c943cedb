"""The folder of a training run as Python data, while it trains and afterwards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.train.record.manifest import read_status
from rocstar.train.record.metrics import Row, read_metrics
from rocstar.train.record.run_directory import METRICS, records_file


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training run by its folder. Each property reads the files again, so a live run can be followed."""

    directory: Path

    @property
    def history(self) -> list[Row]:
        """Return the rows of metrics.jsonl in order: cold start, RL steps, evaluations.

        Raises:
            MetricsFileError: the file is damaged.
        """
        path = self.directory / METRICS
        return read_metrics(path) if path.exists() else []

    @property
    def steps(self) -> list[Row]:
        """Return the rows of the RL steps."""
        return [row for row in self.history if row["phase"] == "rl"]

    @property
    def evaluations(self) -> list[Row]:
        """Return the rows of the evaluations, without those of difficulty filters and of the cold start."""
        return [row for row in self.history if (row["phase"], row["stage"]) == ("eval", "eval")]

    @property
    def ended(self) -> str:
        """Return how the last start ended: "complete", "stopped" by a callback, "interrupted", "failed" or
        "killed"; "running" while a process works on it, "" without a manifest.

        Raises:
            ManifestError: manifest.json is damaged.
        """
        return read_status(self.directory)

    def trajectories(self, step: int) -> list[dict[str, Any]]:
        """Return the records of all trajectories of an RL step (docs/reference/records.md).

        Raises:
            OSError: the run has no records of this step.
        """
        from rocstar.engine.record.reading import read_records  # loads numpy

        return list(read_records(records_file(self.directory, step)))
