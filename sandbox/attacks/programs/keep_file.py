# group: persistence
# tries: to leave a file in its working directory for the next call
# breach: see the next call
# expect: ok
# output: tried
# held-by: a scratch directory per call
try:
    with open("letter", "w") as file:
        file.write("from the first call")
except OSError:
    pass
print("tried")
# %% call
# tries: to find the file of the first call
# expect: ok
# output: HELD: \[\]
import os

try:
    left = os.listdir(".")
except OSError:
    left = []
print(f"BREACH: {left}" if "letter" in left else f"HELD: {left if os.getcwd() != '/' else []}")
