# group: syscalls
# tries: the 32-bit system call gate by machine code, where numbers mean other calls
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp
# needs: x86_64
# breaches-without: seccomp
import ctypes
import mmap

page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
print("trying int 0x80")
result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print(f"BREACH: pid {result}")
