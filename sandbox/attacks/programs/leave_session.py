# group: processes
# tries: prctl, to survive the death of its parent
# breach: the death signal is cleared
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp
import ctypes

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)
result = libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
print("BREACH: no death signal" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
