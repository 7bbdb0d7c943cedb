# group: ipc
# tries: a System V semaphore whose value a later call can read
# breach: it exists
# expect: ok
# output: HELD: errno 1
# held-by: seccomp, namespaces
# breaches-without: seccomp
import ctypes

IPC_CREAT, IPC_RMID = 0o1000, 0
libc = ctypes.CDLL(None, use_errno=True)
semaphore = libc.semget(0x0B5EAC4, 1, IPC_CREAT | 0o666)
if semaphore >= 0:
    libc.semctl(semaphore, 0, IPC_RMID)
print("BREACH: a semaphore" if semaphore >= 0 else f"HELD: errno {ctypes.get_errno()}")
