# group: files
# tries: to make names without end by linking one file
# breach: more than 64 names
# expect: ok
# output: HELD: \d+
# held-by: seccomp, the scratch directory's quota
import os

count = 0
try:
    with open("one", "w") as file:
        file.write("x")
    while count < 500:
        os.link("one", f"two{count}")
        count += 1
except OSError:
    pass
print(f"HELD: {count}" if count <= 64 else f"BREACH: {count} names")
