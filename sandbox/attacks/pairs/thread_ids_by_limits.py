# mypy: ignore-errors
# sender: thread_ids_by_session
# through: prlimit64
# tries: which threads exist, asked by their limits
# needs: x86_64
# %% receiver
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
room = (ctypes.c_long * 2)()
def exists(tid):
    return libc.syscall(302, tid, 7, None, room) == 0 or ctypes.get_errno() == 1 and own_is_fine()
def own_is_fine():
    # EPERM tells that somebody is there only where a number that nobody has gives something else.
    libc.syscall(302, 4_000_000, 7, None, room)
    return ctypes.get_errno() != 1
receive_threads(exists)
