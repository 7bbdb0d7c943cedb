# group: others
# tries: to call the fork server's own native functions with the control descriptor
# breach: a loop starts that forks or answers
# expect: ok error timeout signaled output_limit
# output: trying
# held-by: seccomp
# limits: wall_s=1
from rocstar.sandbox import _native

print("trying")
for name in sorted(vars(_native)):
    function = getattr(_native, name)
    if callable(function) and not isinstance(function, type):
        try:
            function(3)
        except Exception as error:
            print(f"HELD: {name}: {type(error).__name__}")
