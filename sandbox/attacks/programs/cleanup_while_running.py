# group: files
# tries: to remove its own working directory and to go on in it
# breach: the next call finds no working directory
# expect: ok
# output: HELD
# held-by: landlock, seccomp
import os

try:
    os.rmdir(os.getcwd())
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("HELD if the next call works")
