# group: processes
# tries: to read a page of a file that is shorter by now
# breach: anything but the signal's own status
# expect: signaled
# output: before
# forbid: after
# held-by: the ending comes from the kernel
import mmap

with open("page", "wb+") as file:
    file.truncate(8192)
    page = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    print("before", flush=True)
    page[4096]
    print("after")
