# group: files
# tries: to type into the terminal of whoever started the sandbox, or one of its own
# breach: a terminal can be opened, or the character is accepted
# expect: ok
# output: HELD: 9 doors
# held-by: landlock, seccomp, the session of its own
import fcntl
import os

TIOCSTI = 0x5412
paths = ("/dev/tty", "/dev/ptmx", "/dev/pts/ptmx", "/dev/pts/0", "/dev/console", "/dev/tty1")
doors: list[int | str] = [0, 1, 2, *paths]
for door in doors:
    try:
        fd = door if isinstance(door, int) else os.open(door, os.O_RDWR | os.O_NOCTTY)
        if isinstance(door, str):
            print("BREACH: opened", door)
        fcntl.ioctl(fd, TIOCSTI, b"#")
    except OSError:
        continue
    print("BREACH: typed into", door)
print(f"HELD: {len(doors)} doors")
