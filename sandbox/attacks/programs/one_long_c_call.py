# group: cpu
# tries: a single C call that never lets the interpreter look at signals
# breach: it ends by itself
# expect: timeout
# output: started
# held-by: wall clock
# limits: wall_s=1
print("started")
10 ** 10**8
print("BREACH: computed")
