# group: sessions
# mode: session
# tries: to take more memory with every cell
# breach: the third cell has it
# expect: ok
# output: one
# held-by: rlimits
# limits: memory_bytes=201326592
# loosened: memory_bytes=1073741824
held = [b"x" * (1 << 20) for _ in range(80)]
print("one")
# %% cell
# tries: the same again
# expect: ok
# output: two
held += [b"x" * (1 << 20) for _ in range(80)]
print("two")
# %% cell
# tries: the same again, past the limit
# expect: memory_limit
# output: MemoryError
held += [b"x" * (1 << 20) for _ in range(80)]
print("BREACH: three")
