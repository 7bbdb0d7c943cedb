# mypy: ignore-errors
# sender: thread_ids_by_session
# through: sched_getaffinity
# tries: which threads exist, asked by their cores
# %% receiver
import os


def exists(tid):
    try:
        os.sched_getaffinity(tid)
    except OSError:
        return False
    return True
receive_threads(exists)
