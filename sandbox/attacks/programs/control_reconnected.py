# group: output
# tries: to reconnect the control descriptor to a server outside
# breach: the server is reached
# expect: ok
# output: HELD: errno (1|88)
# held-by: seccomp
# stdin: facts
import ctypes
import json
import os
import struct

path = json.loads(input())["unix_path"].encode()
address = struct.pack("=H", 1) + path + b"\0"
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 42, "aarch64": 203}[os.uname().machine]
result = libc.syscall(number, 3, address, len(address))
print("BREACH: connected" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
