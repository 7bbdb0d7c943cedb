"""A run that kills itself with SIGKILL while a step is rolled out ahead; run by test_kill_ahead.py.

    python killed_ahead.py RUN FRAMES ARGUMENTS       `rocstar ARGUMENTS`, which writes to RUN

When the learner is about to change weights for the step behind the third it waits until FRAMES trajectories
of the next step lie in the records. The rollouts need nothing of it for that, and it ends there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rocstar.engine.record.step_file import complete_frames
from rocstar.train.cli import main
from rocstar.train.learner.learner import Learner
from rocstar.train.record.run_directory import METRICS, records_file

RUN, FRAMES = Path(sys.argv[1]), int(sys.argv[2])
LAST = 3
STEP = Learner.optim_step


def last_row() -> int:
    """The last RL step in metrics.jsonl."""
    rows = map(json.loads, (RUN / METRICS).read_text().splitlines())
    return max((row["step"] for row in rows if row["phase"] == "rl"), default=0)


def killed(learner: Learner, *given: Any) -> None:
    if last_row() == LAST:
        path = records_file(RUN, LAST + 2)
        while not path.is_file() or len(list(complete_frames(path))) < FRAMES:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)
    STEP(learner, *given)


Learner.optim_step = killed  # type: ignore[method-assign]
sys.exit(main(sys.argv[3:]))
