# group: output
# tries: to crash inside C code
# breach: the result hides it
# expect: signaled
# output: before
# held-by: the ending comes from the kernel
import ctypes

print("before")
ctypes.string_at(0)
