# group: output
# tries: to say again on the control channel that it is confined, with the process id of its parent
# breach: the supervisor takes its parent for the program, and kills it
# expect: timeout
# output: said
# held-by: the kernel says who speaks
# limits: wall_s=1
import os
import struct

os.write(3, struct.pack("=ci", b"R", os.getppid()))
print("said")
while True:
    pass
