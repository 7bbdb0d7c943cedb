# mypy: ignore-errors
# group: processes
# tries: thousands of threads that hold almost nothing
# breach: more than two hundred run
# expect: ok
# output: HELD
# held-by: uid; the supervisor counts
# limits: wall_s=6
import threading

threading.stack_size(1 << 15)
stop = threading.Event()
made = 0
try:
    for _ in range(4000):
        threading.Thread(target=stop.wait, args=(5,), daemon=True).start()
        made += 1
except RuntimeError:
    pass
stop.set()
print(f"BREACH: {made}" if made > 200 else "HELD: few")
