# group: sessions
# mode: session
# tries: to close the control descriptor in a cell
# breach: the next cell waits past its wall clock
# expect: ok error lost signaled
# output: \A
# held-by: the end of the channel ends the session
# limits: wall_s=10
import os

print("closing")
os.close(3)
# %% cell
# tries: to run
# expect: lost error signaled
# output: (lost|died|\A)
print("BREACH: alive")
