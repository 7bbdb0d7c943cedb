# group: memory
# tries: recursion without end
# breach: none is possible, it must be an ordinary error
# expect: error
# output: RecursionError
# held-by: the interpreter


def fall() -> None:
    fall()


fall()
