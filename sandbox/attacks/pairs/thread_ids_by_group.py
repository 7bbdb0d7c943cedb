# mypy: ignore-errors
# sender: thread_ids_by_session
# through: getpgid
# tries: which threads exist, asked by their group
# %% receiver
import os


def exists(tid):
    try:
        os.getpgid(tid)
    except OSError:
        return False
    return True
receive_threads(exists)
