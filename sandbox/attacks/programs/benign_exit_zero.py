# mypy: ignore-errors
# group: benign
# tries: nothing bad: to leave early with success
# expect: ok
# output: ^early$
import sys

print("early")
sys.exit(0)
print("late")
