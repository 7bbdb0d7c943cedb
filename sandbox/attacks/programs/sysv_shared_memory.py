# group: ipc
# tries: System V shared memory, which outlives the process and counts against no limit
# breach: the segment exists
# expect: ok
# output: HELD: errno 1
# held-by: seccomp, namespaces
# breaches-without: seccomp
import ctypes

IPC_CREAT, IPC_RMID = 0o1000, 0
libc = ctypes.CDLL(None, use_errno=True)
segment = libc.shmget(0x0B5EAC4, 4096, IPC_CREAT | 0o666)
if segment >= 0:
    libc.shmctl(segment, IPC_RMID, None)
print("BREACH: a segment" if segment >= 0 else f"HELD: errno {ctypes.get_errno()}")
