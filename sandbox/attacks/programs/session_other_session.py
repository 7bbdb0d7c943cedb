# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to change what another session sees
# breach: the other session sees it
# expect: ok
# output: changed
# held-by: a process per session
import builtins

builtins.leak = 1
x = "mine"
print("changed")
# %% other
# tries: to see it in another session
# expect: ok
# output: HELD
import builtins

print("BREACH: seen" if hasattr(builtins, "leak") or "x" in globals() else "HELD")
