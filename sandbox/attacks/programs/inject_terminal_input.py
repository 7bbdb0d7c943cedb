# group: files
# tries: to type into the terminal of whoever started the sandbox
# breach: the character is accepted
# expect: ok
# output: HELD: OSError\(25
# held-by: seccomp, the session of its own
import fcntl

TIOCSTI = 0x5412
held = ""
for fd in (0, 1, 2):
    try:
        fcntl.ioctl(fd, TIOCSTI, b"#")
    except OSError as error:
        held = f"HELD: {error!r}"
    else:
        print("BREACH: typed")
print(held)
