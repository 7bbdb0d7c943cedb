# group: output
# tries: a value of a hundred megabytes
# breach: it is kept
# expect: output_limit memory_limit
# output: \A
# held-by: output limit
# limits: output_bytes=10000 wall_s=60
"v" * 10**8
