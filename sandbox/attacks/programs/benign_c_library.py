# group: benign
# tries: nothing bad: to call the C library
# expect: ok
# output: ^5 1\.0$
import ctypes

libc = ctypes.CDLL(None)
libm = ctypes.CDLL("libm.so.6")
libm.cos.restype = ctypes.c_double
libm.cos.argtypes = (ctypes.c_double,)
print(libc.strlen(b"hello"), libm.cos(0.0))
