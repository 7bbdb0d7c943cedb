# group: output
# tries: a value of a hundred megabytes
# breach: it is kept whole
# expect: ok memory_limit
# output: \A
# held-by: output limit (the child cuts its value)
# limits: output_bytes=10000 wall_s=60
"v" * 10**8
