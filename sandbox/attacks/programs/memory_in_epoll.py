# group: memory
# tries: memory of the kernel's, by watching each of its descriptors from as many as it can have
# breach: more than 64 MiB
# expect: ok
# output: HELD: \d+
# held-by: descriptors limit, the kernel's limit of watches
import os
import select

ends: list[int] = []
watchers: list[select.epoll] = []
try:
    for _ in range(32):
        ends += os.pipe()
    while len(watchers) < 100_000:
        watchers.append(select.epoll())
except OSError:
    pass
watches = 0
for watcher in watchers:
    for fd in ends:
        try:
            watcher.register(fd, select.EPOLLIN)
        except OSError:
            break
        watches += 1
print(f"BREACH: {watches}" if watches * 160 > 64 << 20 else f"HELD: {watches}")
