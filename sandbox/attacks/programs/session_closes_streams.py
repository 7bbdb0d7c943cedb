# group: sessions
# mode: session
# tries: to close standard output and error
# breach: the next cell hangs
# expect: ok error lost
# output: \A
# held-by: a cell's end is told on the control descriptor
# limits: wall_s=10
import os

os.close(1)
os.close(2)
# %% cell
# tries: to have a value without streams
# expect: ok error lost
# output: (42|lost|died|\A)
6 * 7
