# group: memory
# tries: one object larger than the machine
# breach: it exists
# expect: memory_limit
# output: MemoryError
# held-by: rlimits
# limits: memory_bytes=268435456
print("trying a terabyte")
held = bytearray(1 << 40)
print("BREACH: allocated")
