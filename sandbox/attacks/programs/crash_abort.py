# group: output
# tries: abort with a buffer full of unwritten text
# breach: the result hides it
# expect: signaled
# output: before
# held-by: the ending comes from the kernel
import os

print("before")
os.abort()
