# mypy: ignore-errors
# sender: thread_ids_by_session
# through: kill tgkill
# tries: which threads exist, asked by a signal of number 0
# %% receiver
import os


def exists(tid):
    try:
        os.kill(tid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return unlike_nobody()
    return True
def unlike_nobody():
    try:
        os.kill(4_000_000, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        return True
receive_threads(exists)
