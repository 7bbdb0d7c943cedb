# mypy: ignore-errors
# group: files
# tries: to mark its files and folders such that nobody removes them
# breach: one is marked
# expect: ok denied
# output: HELD|\A\Z
# held-by: seccomp, capabilities
import fcntl
import os

IMMUTABLE_OR_APPEND = 0x10 | 0x20
os.mkdir("folder")
with open("folder/file", "w") as file:
    file.write("x")
for name in ("folder/file", "folder", "."):
    fd = os.open(name, os.O_RDONLY)
    for request in (0x40086602, 0x40086604):
        try:
            fcntl.ioctl(fd, request, IMMUTABLE_OR_APPEND.to_bytes(8, "little"))
        except OSError:
            continue
        print(f"BREACH: {name} {request:#x}")
    os.close(fd)
print("HELD")
