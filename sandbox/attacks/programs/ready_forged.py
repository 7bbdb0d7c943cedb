# group: output
# tries: to write on the control descriptor what says that a child is confined, then to fail
# breach: the failure is not told
# expect: error
# output: \A
# held-by: the ending comes from the kernel
import os

for byte in (b"R", b"N\0\0\0\0", b"F\0\0\0\0", bytes(5), b"\x01" + bytes(8)):
    try:
        os.write(3, byte)
    except OSError as error:
        print(f"HELD: {error!r}")
os._exit(3)
