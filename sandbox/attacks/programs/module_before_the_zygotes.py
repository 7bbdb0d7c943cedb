# mypy: ignore-errors
# group: persistence
# tries: to leave a module that the interpreters of later calls import before their own
# breach: a later call imports it
# expect: ok
# output: HELD
# held-by: a scratch directory per call
import sys

for name in ("json", "colorsys", "sitecustomize", "rocstar_breach"):
    with open(f"{name}.py", "w") as file:
        file.write("BREACH = True")
import rocstar_breach

assert rocstar_breach.BREACH and sys.path[0]
print("HELD: for this call alone")

# %% call
# tries: to find it
# expect: ok
# output: HELD
import colorsys
import importlib.util
import json

seen = [one.__name__ for one in (colorsys, json) if hasattr(one, "BREACH")]
seen += [name for name in ("rocstar_breach", "sitecustomize") if importlib.util.find_spec(name)]
print(f"BREACH: {seen}" if "rocstar_breach" in seen or "json" in seen or "colorsys" in seen else "HELD")
