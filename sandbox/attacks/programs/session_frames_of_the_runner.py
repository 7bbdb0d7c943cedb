# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to walk into the frames that run a cell: from a function, from the repr of its value, from an await
# breach: there is one of the sandbox's own
# expect: ok
# output: HELD: 2
# held-by: the program is run with no frame below its own
import sys


def walked() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        count += 1
        if "rocstar" in str(frame.f_globals.get("__name__")):
            print(f"BREACH: {frame.f_code.co_filename} {sorted(frame.f_locals)}")
        frame = frame.f_back
    return count


print("HELD:", walked())
# %% cell
# tries: from the repr of its value
# expect: ok
# output: HELD: 2
class Value:
    def __repr__(self) -> str:
        return f"HELD: {walked()}"


Value()
