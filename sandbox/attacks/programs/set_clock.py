# group: syscalls
# tries: to set the machine's clock
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import time

print("trying clock_settime")
try:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
except OSError as error:
    print(f"BREACH: it answered, {error!r}")
else:
    print("BREACH: the clock is set")
