# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to leave the interpreter with success inside a cell, by the hard way
# breach: the session seems to live on
# expect: ok
# output: leaving
# held-by: the ending comes from the kernel
import os

print("leaving")
os._exit(0)
# %% cell
# tries: to run
# expect: lost
# output: died
print("BREACH: alive")
