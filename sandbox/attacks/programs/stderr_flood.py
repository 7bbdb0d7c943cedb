# group: output
# tries: to write errors without end, past Python's buffers
# breach: no end
# expect: output_limit
# output: e{1000}
# held-by: output limit
# limits: output_bytes=10000 wall_s=60
import os

while True:
    os.write(2, b"e" * 65536)
