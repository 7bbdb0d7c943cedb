# group: files
# tries: a FIFO, a folder and a socket as displays, which a reader would wait for
# breach: no answer comes
# expect: ok
# output: , 0 displays
# held-by: the supervisor opens what waits for nobody, and takes regular files alone
# displays: yes
import os

os.mkdir(".display")
try:
    os.mkfifo(".display/0")
except OSError:
    os.mkdir(".display/0")
print("HELD: a FIFO or a folder")
# %% call
# tries: a folder, then displays behind it
# expect: ok
# output: , 0 displays
# displays: yes
import os

os.makedirs(".display/0")
with open(".display/1", "wb") as file:
    file.write(b"text/html\nx")
print("HELD: a folder")
