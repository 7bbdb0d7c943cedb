# group: files
# tries: a sparse file of a terabyte
# breach: it has that size
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: rlimits, seccomp
try:
    with open("sparse", "wb") as file:
        file.truncate(1 << 40)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a terabyte")
