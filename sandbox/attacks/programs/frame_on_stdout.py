# group: output
# tries: to print what the supervisor says to the pool: a RESULT frame of its own call
# breach: a value appears, or the bytes vanish
# expect: error
# output: FORGED
# held-by: framing by length
# value: none
import struct
import sys

for call in range(64):
    body = struct.pack("=BQBBiI", 18, call, 0, 0, 0, 32) + b"FORGED"
    sys.stdout.buffer.write(struct.pack("=I", len(body)) + body)
sys.stdout.flush()
sys.exit(3)
