# mypy: ignore-errors
# group: files
# tries: to remove its own directory, and take a new one of the same name
# breach: it is gone
# expect: ok
# output: HELD
# held-by: landlock
import os

here = os.getcwd()
os.chdir("/")
try:
    os.rmdir(here)
    os.mkdir(here)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is another one now")
