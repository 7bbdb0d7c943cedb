# group: memory
# tries: to catch every MemoryError and to go on for ever
# breach: it goes on past the wall clock
# expect: timeout
# output: full
# held-by: rlimits, wall clock
# limits: memory_bytes=134217728 wall_s=4
held = []
said = False
while True:
    try:
        held.append(bytearray(1 << 20))
    except MemoryError:
        if not said:
            said = True
            print("full")
