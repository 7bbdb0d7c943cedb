# group: memory
# tries: source that is nested deeper than the compiler can go
# breach: none is possible, it must end by an error or a signal
# expect: error memory_limit signaled
# output: compiling
# may-raise: SyntaxError
# held-by: the interpreter, rlimits
# limits: wall_s=8
print("compiling")
eval("(" * 100_000 + ")" * 100_000)
