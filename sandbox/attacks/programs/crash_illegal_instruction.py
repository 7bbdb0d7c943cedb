# group: output
# tries: to execute bytes that are no instruction
# breach: the result hides it
# expect: signaled
# output: before
# held-by: the ending comes from the kernel
import ctypes
import mmap
import os

page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\x0f\x0b" if os.uname().machine == "x86_64" else bytes(4))
print("before")
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
