# group: memory
# tries: threads with stacks of a gigabyte each
# breach: four of them run
# expect: ok
# output: HELD: RuntimeError
# held-by: rlimits
# limits: memory_bytes=1073741824
# loosened: memory_bytes=8589934592
import threading

never = threading.Event()
threading.stack_size(1 << 30)
try:
    for _ in range(4):
        threading.Thread(target=never.wait, daemon=True).start()
except RuntimeError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: 4 GiB of stacks")
