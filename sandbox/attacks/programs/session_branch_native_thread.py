# group: sessions
# mode: session
# tries: to hide a native thread from Python's count, and to be copied with it
# breach: none can be shown: the copy lacks the thread, or is refused
# expect: ok
# output: started
# held-by: fork copies one thread
import ctypes
import time

libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
wait = ctypes.cast(libc.pause, ctypes.c_void_p)
libc.pthread_create(ctypes.byref(thread), None, wait, None)
time.sleep(0.05)
print("started")
# %% branch
# tries: to be copied although a native thread exists, which Python does not count
# expect: ok refused
# output: (^42$|threads)
6 * 7
