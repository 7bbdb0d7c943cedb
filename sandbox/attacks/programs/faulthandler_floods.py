# group: output
# tries: a thread of the C library's making that writes where the program is, again and again
# breach: it goes on beyond the limit
# expect: output_limit
# output: \A
# limits: output_bytes=10000 wall_s=60
# held-by: output limit
import faulthandler
import time

faulthandler.dump_traceback_later(1e-6, repeat=True)
while True:
    time.sleep(1)
