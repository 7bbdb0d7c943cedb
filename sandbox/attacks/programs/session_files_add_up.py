# group: sessions
# mode: session
# tries: to have more files by creating them in cell after cell, some of them without a name
# breach: it has more than it may
# expect: ok
# output: HELD
# held-by: the supervisor counts
import os

held = []
for number in range(40):
    held.append(os.open(str(number), os.O_CREAT | os.O_WRONLY))
    if number % 2:
        os.unlink(str(number))
print("HELD: begun")

# %% cell
# tries: to have as many again
# expect: ok
# output: HELD
try:
    for number in range(40, 80):
        held.append(os.open(str(number), os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print("HELD:", error.strerror)
else:
    print("BREACH: as many as it likes")
