# group: output
# tries: half a surrogate pair on standard output
# breach: the supervisor fails to decode
# expect: error
# output: UnicodeEncodeError
# held-by: the interpreter, repair of UTF-8
print("\ud800")
