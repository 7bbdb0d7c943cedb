# mypy: ignore-errors
# group: cpu
# tries: to wait for ever at the top of its program
# breach: it outlives its wall clock
# expect: timeout
# output: \A
# held-by: the wall clock of the supervisor
# limits: wall_s=0.3
import asyncio

await asyncio.sleep(3600)
print("BREACH: waited")
