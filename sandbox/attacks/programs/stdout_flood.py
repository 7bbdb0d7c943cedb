# group: output
# tries: to print without end
# breach: the supervisor keeps all of it, or waits for the wall clock
# expect: output_limit
# output: x{1000}
# held-by: output limit
# limits: output_bytes=10000 wall_s=60
# loosened: output_bytes=33554432 wall_s=60
for _ in range(2000):
    print("x" * 1000)
print("BREACH: 2 MB printed")
while len("x") > 1:
    pass
