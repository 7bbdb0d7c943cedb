# group: files
# tries: to become dumpable, so that others may trace it and its /proc files change owner
# breach: prctl returns 0
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp
import ctypes

PR_SET_DUMPABLE = 4
libc = ctypes.CDLL(None, use_errno=True)
result = libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
print("BREACH: dumpable" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
