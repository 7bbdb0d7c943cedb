# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to create files in cell after cell, and remove them
# breach: it creates more than it may
# expect: ok
# output: HELD
# held-by: the supervisor counts
import os

for number in range(40):
    os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
    os.unlink(str(number))
print("HELD: begun")

# %% cell
# tries: to create as many again
# expect: ok
# output: HELD
try:
    for number in range(40):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
        os.unlink(str(number))
except OSError as error:
    print("HELD:", error.strerror)
else:
    print("BREACH: as many as it likes")
