# group: files
# tries: open_tree, which copies a tree of mounts that is then in no namespace
# breach: open_tree returns at all
# expect: denied
# output: trying
# held-by: seccomp
import ctypes

OPEN_TREE_CLONE, AT_FDCWD = 1, -100
libc = ctypes.CDLL(None, use_errno=True)
print("trying open_tree")
libc.syscall(428, AT_FDCWD, b"/", OPEN_TREE_CLONE)
print(f"BREACH: open_tree answered, errno {ctypes.get_errno()}")
