# mypy: ignore-errors
# group: cpu
# tries: to raise the priority of its group of the scheduler
# breach: it can
# expect: ok
# output: HELD
# held-by: landlock
try:
    with open("/proc/self/autogroup", "w") as file:
        file.write("-10")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it has more of every core")
