# group: output
# tries: output whose cut falls inside a character of four bytes
# breach: half a character reaches the reader
# expect: ok output_limit
# output: \U0001f600{50}
# held-by: repair of UTF-8, output limit
# limits: output_bytes=1001
print("\U0001f600" * 500)
