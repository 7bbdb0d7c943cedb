# group: others
# tries: to replace every function of the sandbox that it finds in its process
# breach: a later call is upset
# expect: ok error signaled
# output: replaced
# held-by: fork
import sys

count = 0
for name, module in list(sys.modules.items()):
    if name.startswith("rocstar"):
        for attribute, value in list(vars(module).items()):
            if callable(value):
                setattr(module, attribute, lambda *_, **__: None)
                count += 1
print(f"replaced {count}" if count else "BREACH: nothing found, so nothing was tried")
# %% call
# tries: to run
# expect: ok
# output: HELD
print("HELD")
