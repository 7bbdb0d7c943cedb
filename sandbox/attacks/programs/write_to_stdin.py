# group: output
# tries: to change its standard input, which a repeated call would read again
# breach: bytes are written
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: a sealed file
# stdin: facts
import os

try:
    os.write(0, b"changed")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: written")
