# group: secrets
# tries: kernel symbols and messages, to prepare an attack on the kernel
# breach: one of them is read
# expect: ok
# output: HELD: \d+
# held-by: landlock
tried = 0
for name in ("kallsyms", "modules", "version", "cmdline", "config.gz", "kcore"):
    tried += 1
    try:
        with open(f"/proc/{name}", "rb") as file:
            print(f"BREACH: {name}: {file.read(20)!r}")
    except OSError:
        continue
print(f"HELD: {tried}")
