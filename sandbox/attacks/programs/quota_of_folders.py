# group: files
# tries: folders nested without end, which take long to remove
# breach: more than 64 of them
# expect: ok
# output: HELD: \d+
# held-by: seccomp, the scratch directory's quota
import os

depth = 0
try:
    while depth < 500:
        os.mkdir("d")
        os.chdir("d")
        depth += 1
except OSError:
    pass
print(f"HELD: {depth}" if depth <= 64 else f"BREACH: {depth} folders")
