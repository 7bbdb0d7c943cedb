# group: files
# tries: to watch the caller's folder with inotify
# breach: the watch exists
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# stdin: facts
# breaches-without: seccomp
import ctypes
import json

IN_ALL_EVENTS = 0xFFF
folder = json.loads(input())["bait_folder"].encode()
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0)
watch = libc.inotify_add_watch(fd, folder, IN_ALL_EVENTS)
print("BREACH: watching" if fd >= 0 and watch >= 0 else f"HELD: errno {1 if fd < 0 else ctypes.get_errno()}")
