# mypy: ignore-errors
# group: files
# tries: folders in folders with the longest names, past what one path can say
# breach: they are still there afterwards
# expect: ok
# output: HELD
# held-by: the supervisor counts; it removes by descriptors
import os

made = 0
try:
    for _ in range(200):
        os.mkdir("n" * 250)
        os.chdir("n" * 250)
        made += 1
except OSError as error:
    print("HELD:", made, error.strerror)
else:
    print("BREACH: as many as it likes")
