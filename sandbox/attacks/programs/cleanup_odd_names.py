# group: files
# tries: names that a cleaner may not manage: newlines, 255 bytes, no UTF-8
# breach: a file is left after the call
# expect: ok
# output: HELD: \d
# held-by: removal of the scratch directory
import os

names = [b"new\nline", b"n" * 255, b"\xff\xfe", b"-rf", b" ", b"rocstar-breach"]
made = 0
for name in names:
    try:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        made += 1
    except OSError:
        continue
print(f"HELD: {made}")
