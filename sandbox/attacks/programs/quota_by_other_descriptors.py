# mypy: ignore-errors
# group: files
# tries: to hold files in the descriptors of a thread that has a table of its own, which no count would see
# breach: such a thread starts
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes

CLONE_VM, CLONE_FS, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM = 0x100, 0x200, 0x800, 0x10000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)
stack = ctypes.create_string_buffer(1 << 16)
top = ctypes.addressof(stack) + (1 << 16) - 64
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
made = libc.clone(kind(lambda _: 0), ctypes.c_void_p(top), flags, None)
print(f"HELD: {ctypes.get_errno()}" if made < 0 else f"BREACH: thread {made}")
