# group: sessions
# mode: session
# tries: many branches of one session
# breach: processes are left
# expect: ok
# output: ready
# held-by: the supervisor
x = 1
print("ready")
# %% branch
# expect: ok
# output: 2
print(x + 1)
# %% branch
# expect: ok
# output: 3
print(x + 2)
# %% branch
# expect: error
# output: ZeroDivisionError
x / 0
# %% branch
# expect: signaled
# output: \A
import ctypes

ctypes.string_at(0)
# %% cell
# expect: ok
# output: ^1$
print(x)
