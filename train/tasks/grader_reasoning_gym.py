"""The program that asks a reasoning-gym family for its score. Runs in the sandbox; never imported by a run.

Lines in and out as in grader_symbolic.py: the entry, then the prediction, then the nonce.
"""

import base64
import json
import pickle
import sys

from reasoning_gym import get_score_answer_fn

READ = "truths read"


def main() -> None:
    """Grade one job."""
    job = json.loads(sys.stdin.readline())
    score_answer = get_score_answer_fn(job["family"])
    entry = pickle.loads(base64.b64decode(job["entry"]))
    print(READ, flush=True)
    prediction = json.loads(sys.stdin.readline())
    try:
        bit = str(int(score_answer(prediction, entry) == 1.0))
    except (RecursionError, MemoryError):
        bit = "L"
    except Exception:  # scorers raise on answers of another form: the score was not 1.0
        bit = "0"
    print(f"\n{sys.stdin.readline().strip()} {bit}")


if __name__ == "__main__":
    main()
