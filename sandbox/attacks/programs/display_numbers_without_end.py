# group: output
# tries: a display for each number, as many as it may have files
# breach: more than 32 are shown
# expect: ok
# output: , 32 displays
# held-by: a bound on displays
# limits: files=300
# needs: scratch
# displays: yes
import os

os.mkdir(".display")
for number in range(290):
    with open(f".display/{number}", "wb") as file:
        file.write(b"text/html\n<b>x</b>")
print("HELD: 290")
