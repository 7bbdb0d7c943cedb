# group: ipc
# tries: a System V message queue as a letter box between calls
# breach: the queue exists
# expect: ok
# output: HELD: errno 1
# held-by: seccomp, namespaces
# breaches-without: seccomp
import ctypes

IPC_CREAT, IPC_RMID = 0o1000, 0
libc = ctypes.CDLL(None, use_errno=True)
queue = libc.msgget(0x0B5EAC4, IPC_CREAT | 0o666)
if queue >= 0:
    libc.msgctl(queue, IPC_RMID, None)
print("BREACH: a queue" if queue >= 0 else f"HELD: errno {ctypes.get_errno()}")
