# group: others
# tries: to overwrite the interpreter's cached integers in memory
# breach: a later call computes with them
# expect: ok error signaled
# output: \A
# held-by: fork
import ctypes

ctypes.c_char.from_address(id(200) + 24).value = b"\x07"
# %% call
# tries: to compute with the overwritten integer
# expect: ok
# output: HELD
print("HELD" if sum([100, 100]) == int("199") + 1 else "BREACH: 200 is not 200")
