# group: files
# tries: one file without end
# breach: it grows past file_bytes
# expect: ok
# output: HELD: \d+
# held-by: rlimits, seccomp
# limits: file_bytes=1048576
# loosened: file_bytes=67108864 when scratch
size = 0
try:
    with open("large", "wb", buffering=0) as file:
        while size < 8 << 20:
            size += file.write(bytes(65536))
except OSError:
    pass
print(f"HELD: {size}" if size <= 1 << 20 else f"BREACH: {size} bytes")
