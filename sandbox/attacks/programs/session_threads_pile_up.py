# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to leave more threads with every cell
# breach: it has hundreds
# expect: ok
# output: HELD
# held-by: uid; the supervisor counts
import threading

stop = threading.Event()


def more() -> int:
    threading.stack_size(1 << 15)
    try:
        for _ in range(300):
            threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError:
        pass
    return threading.active_count()


print("HELD: begun", more() > 0)

# %% cell
# tries: to have more
# expect: ok
# output: HELD
number = more()
print(f"BREACH: {number}" if number > 200 else "HELD: few")
stop.set()
