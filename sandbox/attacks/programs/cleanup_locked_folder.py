# group: files
# tries: a folder without any rights around a file, which a cleaner may not enter
# breach: it is left after the call
# expect: ok
# output: HELD: \d
# held-by: removal of the scratch directory, seccomp
import os

done = 0
try:
    os.mkdir("rocstar-breach")
    done = 1
    open("rocstar-breach/inner", "w").close()
    done = 2
    os.chmod("rocstar-breach", 0)
    done = 3
    os.chmod(".", 0)
    done = 4
except OSError:
    pass
print(f"HELD: {done}")
