# mypy: ignore-errors
# group: persistence
# tries: the times of the scratch directory, in which an earlier call has only looked
# breach: an earlier call is seen there
# expect: ok
# output: HELD
# held-by: a new directory, or new times
import os
import time

print("HELD: looked", os.listdir("."))
time.sleep(1)

# %% call
# tries: to see when somebody looked before
# expect: ok
# output: HELD
# stdin: facts
import json
import os
import sys

asked_s = json.load(sys.stdin)["asked_s"]  # not the time of now: this call may be late itself
found = os.stat(".")
age_s = asked_s - max(found.st_atime, found.st_mtime)
print(f"BREACH: {age_s}" if age_s > 0.5 else "HELD: of this call")
