# group: files
# tries: to find another call's bytes in its own file, where both are read at a time in two threads
# breach: it has them
# expect: ok
# output: FETCHED 16 files, 67108864 bytes, of b'A'
# held-by: a buffer for each reading
# fetch: big*16
for number in range(16):
    with open(f"big{number}", "wb") as file:
        file.write(b"A" * (4 << 20))
# %% meanwhile
# tries: the same, with other bytes
# expect: ok
# output: FETCHED 16 files, 67108864 bytes, of b'B'
# fetch: big*16
for number in range(16):
    with open(f"big{number}", "wb") as file:
        file.write(b"B" * (4 << 20))
# %% meanwhile
# tries: short answers at the same time, which are read in the other thread
# expect: ok
# output: FETCHED 1 files, 900000 bytes, of b'C'
# fetch: short
# limits: file_bytes=900000
with open("short", "wb") as file:
    file.write(b"C" * 900_000)
