# group: sessions
# mode: session
# tries: a hook that refuses to compile or run anything, so that the next cell cannot be
# breach: that cell hangs, or another session is upset
# expect: ok
# output: refused
# held-by: the next cell's failure is a result
import sys


def refuse(event: str, arguments: object) -> None:
    if event in ("compile", "exec"):
        raise RuntimeError(event)


sys.addaudithook(refuse)
print("refused")
# %% cell
# tries: to run
# expect: error lost
# output: \A
print("next")
# %% other
# tries: to run
# expect: ok
# output: HELD
print("HELD")
