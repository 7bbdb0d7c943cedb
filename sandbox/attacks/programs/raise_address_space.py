# group: memory
# tries: to raise its own limit of address space
# breach: the limit is raised
# expect: ok
# output: HELD: (PermissionError|ValueError)
# held-by: seccomp, rlimits
import resource

try:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except (OSError, ValueError) as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: no limit")
