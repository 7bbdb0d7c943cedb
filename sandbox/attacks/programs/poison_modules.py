# mypy: ignore-errors
# group: others
# tries: to change built-in functions and modules for the calls that come after
# breach: a later call sees the change
# expect: ok
# output: poisoned
# held-by: fork
import builtins
import json
import math
import os
import sys

math.pi = 3
json.loads = len
builtins.leak = "x"
builtins.len = lambda _: 0
os.environ["LEAK"] = "x"
sys.path.insert(0, "/tmp")
sys.modules["leak"] = sys
sys.setrecursionlimit(60)
print("poisoned")
# %% call
# tries: to see what the first call did
# expect: ok
# output: HELD
import builtins
import json
import math
import os
import sys

clean = (
    math.pi > 3.1
    and json.loads("[1, 2]") == [1, 2]
    and not hasattr(builtins, "leak")
    and len([1]) == 1
    and "LEAK" not in os.environ
    and "/tmp" not in sys.path
    and "leak" not in sys.modules
    and sys.getrecursionlimit() > 60
)
print("HELD" if clean else "BREACH: poisoned")
