# group: files
# tries: to write above its working directory through ".."
# breach: the file exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: landlock, seccomp
import os

held = []
for depth in range(1, 8):
    place = "../" * depth + "rocstar-breach"
    try:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        held.append(error.errno)
    else:
        os.unlink(place)
        print(f"BREACH: {place}")
print(f"HELD: OSError {held}")
