# group: files
# tries: to get a core dump, with the memory of the fork server in it
# breach: the limit is raised
# expect: ok
# output: HELD: (PermissionError|ValueError)
# held-by: seccomp, rlimits
import resource

try:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
except (OSError, ValueError) as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a core may be written")
