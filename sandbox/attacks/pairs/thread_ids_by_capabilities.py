# mypy: ignore-errors
# sender: thread_ids_by_session
# through: capget
# tries: which threads exist, asked by their capabilities
# needs: x86_64
# %% receiver
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
data = (ctypes.c_uint * 6)()
def exists(tid):
    return libc.syscall(125, (ctypes.c_uint * 2)(0x20080522, tid), data) == 0
receive_threads(exists)
