# mypy: ignore-errors
# group: persistence
# tries: to leave a variable of the environment for the next call
# breach: it is found
# expect: ok
# output: HELD
# held-by: fork
import os

os.environ["LEFT_BEHIND"] = "1"
os.putenv("LEFT_BEHIND", "1")
print("HELD: left")

# %% call
# tries: to find it
# expect: ok
# output: HELD
import os

print("BREACH: found" if "LEFT_BEHIND" in os.environ else "HELD: nothing")
