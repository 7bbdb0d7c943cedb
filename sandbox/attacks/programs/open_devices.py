# group: files
# tries: to open disks, memory, terminals and the kernel's log for reading
# breach: one of them is open
# expect: ok
# output: HELD: \d+
# held-by: landlock, uid
# breaches-without: landlock+uid when root
import os

harmless = {"null", "zero", "full", "random", "urandom"}
known = ["mem", "kmsg", "tty", "console", "fuse", "kvm", "vda", "sda", "nvme0n1", "loop0", "vsock", "net/tun"]
try:
    known += os.listdir("/dev")
except OSError:
    pass
tried = 0
for name in known:
    if name in harmless:
        continue
    tried += 1
    try:
        fd = os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        continue
    if not os.path.isdir(f"/dev/{name}"):
        print(f"BREACH: /dev/{name}")
        break
    os.close(fd)
print(f"HELD: {tried}")
