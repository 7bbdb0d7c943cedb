# group: syscalls
# tries: to switch on process accounting into a file
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying acct")
libc.acct(b"/rocstar-breach")
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
