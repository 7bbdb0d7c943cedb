# group: sessions
# mode: session
# tries: to find the files of another session
# breach: they are found
# expect: ok
# output: kept
# held-by: a scratch directory per session, landlock
try:
    with open("secret", "w") as file:
        file.write("swordfish")
except OSError:
    pass
print("kept")
# %% other
# tries: to find them from another session
# expect: ok
# output: HELD
import os

places = ["secret", "../secret", *(f"{root}/secret" for root in ("/tmp", "/dev/shm"))]
found = [place for place in places if os.path.exists(place)]
print(f"BREACH: {found}" if found else "HELD")
