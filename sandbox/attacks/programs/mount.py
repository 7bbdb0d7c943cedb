# group: files
# tries: to mount a file system of its own
# breach: mount returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying mount")
libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)
print(f"BREACH: mount answered, errno {ctypes.get_errno()}")
