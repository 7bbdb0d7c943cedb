# group: benign
# tries: nothing bad: two hundred megabytes
# expect: ok
# output: ^200$
data = bytearray(200 << 20)
data[::4096] = b"x" * len(data[::4096])
print(len(data) >> 20)
