# group: secrets
# tries: the lists of accounts, hosts, keys and mounted secrets
# breach: one of them is read
# expect: ok
# output: HELD: \d+
# held-by: landlock
# breaches-without: landlock
places = ["/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/hostname", "/etc/machine-id", "/proc/mounts"]
places += ["/run/secrets/kubernetes.io/serviceaccount/token", "/proc/self/cgroup", "/proc/self/environ"]
tried = 0
for place in places:
    tried += 1
    try:
        with open(place, "rb") as file:
            print(f"BREACH: {place}: {file.read(20)!r}")
    except OSError:
        continue
print(f"HELD: {tried}")
