# group: cpu
# tries: to catch whatever a clock might raise inside the program
# breach: no end by the wall clock
# expect: timeout
# output: started
# held-by: wall clock
# limits: wall_s=1
print("started")
while True:
    try:
        while True:
            pass
    except BaseException:
        continue
