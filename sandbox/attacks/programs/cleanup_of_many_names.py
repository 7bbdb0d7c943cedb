# group: persistence
# tries: to keep whoever removes its files busy: 20,000 names of 200 bytes in one folder
# breach: others wait for it, or some are left
# expect: ok
# output: HELD: 19999
# held-by: a thread of its own removes what takes long
# limits: files=20100 wall_s=240 cpu_s=200
# needs: scratch
import os

os.mkdir("many")
os.chdir("many")
for number in range(19_999):
    os.close(os.open(f"{number:0200}", os.O_CREAT | os.O_WRONLY))
print("HELD: 19999")
# %% call
# tries: to find the place removed, and to be served at once
# expect: ok
# output: HELD
# limits: wall_s=4
import os

print("BREACH" if "many" in os.listdir(".") else "HELD: empty")
