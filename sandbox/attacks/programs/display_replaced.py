# mypy: ignore-errors
# group: persistence
# tries: to replace what shows figures and values, for the next call
# breach: it is replaced there
# expect: ok error
# output: HELD: replaced
# held-by: fork
import builtins
import sys

module = sys.modules[display.__module__]
module.begin = module.show_value = module.show_figures = builtins.display = None
print("HELD: replaced")

# %% call
# tries: to use it
# expect: ok
# output: HELD
display("HELD: as it was")
