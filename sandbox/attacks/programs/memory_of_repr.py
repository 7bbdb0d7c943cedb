# mypy: ignore-errors
# group: memory
# tries: a value of a few objects whose repr grows by ten with each level
# breach: it is shown
# expect: memory_limit output_limit timeout
# output: (MemoryError|trying)
# held-by: rlimits, wall clock, output limit
# limits: memory_bytes=268435456 wall_s=3
print("trying to be shown")
laugh = ["ha"] * 10
for _ in range(9):
    laugh = [laugh] * 10
laugh
