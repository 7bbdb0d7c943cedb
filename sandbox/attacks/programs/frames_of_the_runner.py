# mypy: ignore-errors
# group: others
# tries: to walk from its own frame into those that run it, and to read and change their locals
# breach: there is one
# expect: ok
# output: HELD: 1
# held-by: the program is run with no frame below its own
import sys

frame, count = sys._getframe(), 0
while frame is not None:
    count += 1
    if frame.f_globals.get("__name__") != "__main__":
        print(f"BREACH: {frame.f_code.co_filename} {sorted(frame.f_locals)}")
    frame = frame.f_back
print(f"HELD: {count}")
