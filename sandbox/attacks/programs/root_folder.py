# group: secrets
# tries: to list the machine: /, /tmp, /home, /var, /srv, /mnt
# breach: a listing comes back
# expect: ok
# output: HELD: \d+
# held-by: landlock
# breaches-without: landlock
import os

tried = 0
for place in ("/", "/tmp", "/home", "/var", "/srv", "/mnt", "/opt", "/run", "/dev/shm", "/proc"):
    tried += 1
    try:
        listing = os.listdir(place)
    except OSError:
        continue
    print(f"BREACH: {place}: {listing[:10]}")
print(f"HELD: {tried}")
