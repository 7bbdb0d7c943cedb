# group: secrets
# tries: nothing by itself: it keeps a file in its working directory while the other call looks for it
# breach: see the other call
# expect: ok
# output: kept
# held-by: landlock, a scratch directory per call
import time

try:
    with open("secret", "w") as file:
        file.write("swordfish")
except OSError:
    pass
time.sleep(1)
print("kept")
# %% meanwhile
# tries: the working directories of calls that run at the same time, by listing and by guessing names
# expect: ok
# output: HELD: \d+
import os
import re

mine = os.getcwd()
above = os.path.dirname(mine)
guesses = [above, os.path.dirname(above)]
guesses += [os.path.join(above, re.sub(r"\d+", str(n), os.path.basename(mine))) for n in range(128)]
tried = 0
for guess in guesses:
    for place in (guess, os.path.join(guess, "secret")):
        if os.path.realpath(guess) == os.path.realpath(mine):
            continue
        tried += 1
        try:
            fd = os.open(f"/.{place}", os.O_RDONLY)  # not led to its own /tmp
        except OSError:
            continue
        print(f"BREACH: {place}: descriptor {fd}")
print(f"HELD: {tried}")
