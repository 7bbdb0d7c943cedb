# group: files
# tries: files without end in its working directory
# breach: more than the 64 that a call may create
# expect: ok
# output: HELD: \d+
# held-by: seccomp, the scratch directory's quota
# loosened: files=1000 when scratch
count = 0
try:
    while count < 500:
        with open(f"f{count}", "w") as file:
            file.write("x")
        count += 1
except OSError:
    pass
print(f"HELD: {count}" if count <= 64 else f"BREACH: {count} files")
