# mypy: ignore-errors
# when: live
# through: openat mkdirat unlinkat rename stat newfstatat access
# tries: files in one's own directory, whose names others look up
import os
import time

for place in range(6):
    open(f"n{place}{FRAME >> 4 * place & 15:x}", "w").close()
time.sleep(HOLD_S)
# %% receiver
import os

base = os.path.dirname(os.getcwd())
def look():
    for slot in range(16):
        seen = [(place, value) for place in range(6) for value in range(16)
                if os.path.exists(f"{base}/{slot}/n{place}{value:x}")]
        if len(seen) == 6:
            return sum(value << 4 * place for place, value in seen)
    return -1
receive(look)
