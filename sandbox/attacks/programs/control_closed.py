# group: output
# tries: to close every descriptor and to go on without them
# breach: the supervisor waits, or takes it for an end
# expect: error
# output: \A
# held-by: the ending comes from the kernel
import os

os.closerange(0, 4)
os._exit(7)
