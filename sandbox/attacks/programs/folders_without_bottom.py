# group: persistence
# tries: more levels of folders than a process usually has descriptors, so that they cannot be cleared away
# breach: they are left in the scratch room
# expect: ok
# output: HELD: 3000
# held-by: an owner's folders are brought up to one level before they are removed
# limits: files=3000 file_bytes=1024 wall_s=60 cpu_s=60
import os

made = 0
while made < 3_000:
    os.mkdir("below")
    os.chdir("below")
    made += 1
print("HELD:", made)
