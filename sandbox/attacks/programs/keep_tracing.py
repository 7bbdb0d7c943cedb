# group: persistence
# tries: to leave hooks of the interpreter: tracing, profiling, audit, exception and exit hooks
# breach: see the next call
# expect: ok error
# output: hooked
# held-by: fork
import atexit
import sys
import threading


def hook(*arguments: object) -> None:
    sys.__stdout__.write("") if sys.__stdout__ else None


sys.setprofile(hook)
threading.setprofile(hook)
sys.settrace(None)
sys.addaudithook(hook)
sys.excepthook = hook
sys.unraisablehook = hook
atexit.register(hook)
print("hooked")
# %% call
# tries: to see the hooks of the first call
# expect: ok
# output: HELD
import atexit
import sys

clean = sys.getprofile() is None and sys.gettrace() is None and sys.excepthook is sys.__excepthook__
print("HELD" if clean and atexit._ncallbacks() == 0 else "BREACH: hooks")
