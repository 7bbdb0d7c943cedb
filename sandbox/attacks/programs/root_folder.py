# group: secrets
# tries: to list the machine: /, /tmp, /home, /var, /srv, /mnt
# breach: a listing comes back
# expect: ok
# output: HELD: \d+
# held-by: landlock
# breaches-without: landlock
import os

tried = 0
for name in ("/", "/tmp", "/home", "/var", "/srv", "/mnt", "/opt", "/run", "/dev/shm", "/proc"):
    place = f"/.{name}"  # which is not led to the program's own /tmp
    tried += 1
    try:
        listing = os.listdir(place)
    except OSError:
        continue
    print(f"BREACH: {place}: {listing[:10]}")
print(f"HELD: {tried}")
