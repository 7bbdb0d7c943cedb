# group: cpu
# tries: a regular expression that takes exponential time and holds the interpreter's lock
# breach: it ends by itself
# expect: timeout
# output: started
# held-by: wall clock
# limits: wall_s=1
import re

print("started")
re.match(r"(a+)+$", "a" * 64 + "b")
print("BREACH: matched")
