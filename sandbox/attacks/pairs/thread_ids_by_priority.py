# mypy: ignore-errors
# sender: thread_ids_by_session
# through: getpriority
# tries: which threads exist, asked by their priority
# %% receiver
import os


def exists(tid):
    try:
        os.getpriority(os.PRIO_PROCESS, tid)
    except OSError:
        return False
    return True
receive_threads(exists)
