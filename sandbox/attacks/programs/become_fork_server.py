# group: others
# tries: to be a fork server: its native functions with the control descriptor
# breach: a loop starts that forks or answers
# expect: ok error timeout signaled output_limit
# output: trying
# held-by: seccomp
# limits: wall_s=1
from rocstar.sandbox import _native
from rocstar.sandbox.child import cell

layers = _native.Layers(seccomp=False, notify=False, truncate=False)
programs = _native.Programs(cell)
print("trying", flush=True)
_native.serve(3, layers=layers, hello="{}", programs=programs, run_session_cell=cell.run_session_cell)
print("HELD: serve returned")
# %% call
# expect: ok error timeout signaled output_limit
# output: trying
# limits: wall_s=1
from rocstar.sandbox import _native

layers = _native.Layers(seccomp=False, notify=False, truncate=False)
print("trying", flush=True)
_native.serve_cpp(3, layers=layers, command=["/bin/true"])
print("HELD: serve_cpp returned")
# %% call
# expect: ok error timeout signaled output_limit
# output: trying
# limits: wall_s=1
from rocstar.sandbox import _native

layers = _native.Layers(seccomp=False, notify=False, truncate=False)
print("trying", flush=True)
_native.serve_shell(3, layers=layers, bash="/bin/bash")
print("HELD: serve_shell returned")
# %% call
# expect: ok error timeout signaled output_limit
# output: trying
# limits: wall_s=1
from rocstar.sandbox import _native

print("trying", flush=True)
for name, given in (
    ("say_fatal", (3, "{}")),
    ("die_with_parent", (1,)),
    ("probe", ()),
    ("use_up_free_memory", ()),
    ("use_up_free_objects", ()),
    ("compact_memory", ()),
    ("collapse_heap", ()),
    ("put_first_objects_together", ()),
):
    try:
        print(f"HELD: {name} gave {getattr(_native, name)(*given)!r:.60}", flush=True)
    except RuntimeError as error:
        print(f"HELD: {name}: {error}")
