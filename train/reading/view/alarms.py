"""What `rocstar doctor RUN` says of a run, with the places of the trajectories that show it."""

from __future__ import annotations

from typing import Any

from rocstar.train.reading.diagnosis.diagnose import diagnose
from rocstar.train.reading.diagnosis.doctor_command import as_plain
from rocstar.train.reading.view.viewed_run import ViewedRun
from rocstar.train.record.manifest import ManifestError
from rocstar.train.record.metrics import MetricsFileError
from rocstar.train.record.run_directory import METRICS


def alarms(run: ViewedRun) -> dict[str, Any]:
    """The diagnosis as `rocstar doctor --json` prints it; `problem` says why there is none, else "".

    RecordError, ConfigError: a record or an evaluation of the run is damaged.
    """
    if not (run.path / METRICS).is_file():
        return {"problem": "no metrics.jsonl: what did not train has no alarms"}
    try:
        return {**as_plain(diagnose(run.path)), "problem": ""}
    except (MetricsFileError, ManifestError) as error:
        return {"problem": str(error)}
