# group: sessions
# mode: session
# tries: to replace the functions that run cells in its own process
# breach: the supervisor or a fresh session is upset
# expect: ok error
# output: \A
# held-by: a process per session
# limits: wall_s=10
import sys

for name, module in list(sys.modules.items()):
    if name.startswith("rocstar"):
        for attribute, value in list(vars(module).items()):
            if callable(value):
                setattr(module, attribute, lambda *_, **__: None)
# %% cell
# tries: to run in the broken interpreter
# expect: ok error lost timeout signaled
# output: \A
print("whatever")
# %% other
# tries: to run in a fresh session
# expect: ok
# output: fresh
print("fresh")
