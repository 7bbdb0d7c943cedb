# group: processes
# tries: threads without end
# breach: five thousand threads live at once
# expect: ok
# output: HELD: after \d+
# held-by: rlimits
# limits: wall_s=8
import threading

never = threading.Event()
count = 0
try:
    while count < 5000:
        threading.Thread(target=never.wait, daemon=True).start()
        count += 1
except (RuntimeError, MemoryError):
    pass
print(f"HELD: after {count}" if count < 5000 else "BREACH: 5000 threads")
