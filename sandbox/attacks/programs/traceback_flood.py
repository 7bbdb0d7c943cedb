# group: output
# tries: an exception with ten megabytes of text
# breach: all of it is kept
# expect: output_limit error
# output: \A
# held-by: output limit
# limits: output_bytes=10000
raise ValueError("t" * 10**7)
