# group: output
# tries: to read from the control descriptor what is meant for others
# breach: bytes of another program arrive
# expect: ok
# output: HELD
# held-by: a channel per child
import os
import select

ready, _, _ = select.select([3], [], [], 0.1)
try:
    data = os.read(3, 1 << 20) if ready else b""
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {data[:80]!r}" if data else "HELD: nothing")
