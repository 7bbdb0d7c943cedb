# group: files
# tries: FIFOs, devices and sockets of the names that are fetched, which a reader would wait for
# breach: no answer comes, or one with what a device gives
# expect: ok
# output: FETCHED 0 files
# held-by: the supervisor opens what waits for nobody, and takes regular files alone
# fetch: fifo device socket null
import os
import stat

made = []
for name, kind, device in (
    ("fifo", stat.S_IFIFO, 0),
    ("device", stat.S_IFCHR, os.makedev(1, 5)),
    ("socket", stat.S_IFSOCK, 0),
):
    try:
        os.mknod(name, 0o666 | kind, device)
        made.append(name)
    except OSError:
        continue
try:
    os.symlink("/dev/zero", "null")
except OSError:
    made.append("no link")
print(f"BREACH: {made}" if "device" in made else f"HELD: {made}")
