# group: others
# tries: a hook that refuses every event of the interpreter, also those of whoever ends the program
# breach: the program does not end, or a later call is upset
# expect: ok error
# output: refused
# held-by: fork
import sys

print("refused", flush=True)


def refuse(event: str, arguments: object) -> None:
    raise RuntimeError(event)


sys.addaudithook(refuse)
# %% call
# tries: to run
# expect: ok
# output: HELD
print("HELD")
