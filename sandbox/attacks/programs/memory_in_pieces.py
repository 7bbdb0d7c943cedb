# group: memory
# tries: to grow a list of megabytes it has touched
# breach: it holds twice its limit
# expect: memory_limit
# output: MemoryError
# held-by: rlimits
# limits: memory_bytes=134217728
# loosened: memory_bytes=1073741824
held = []
for _ in range(300):
    held.append(b"x" * (1 << 20))
print("BREACH: 300 MB")
