# group: files
# tries: more bytes in one answer than an answer may have, by files of holes that cost nothing
# breach: more than 64 MiB are fetched
# expect: ok
# output: FETCHED 16 files, 67108864 bytes
# needs: scratch
# held-by: a bound on the bytes of an answer
# fetch: hole*60
# limits: file_bytes=4194304
import os

for number in range(60):
    file = os.open(f"hole{number}", os.O_WRONLY | os.O_CREAT)
    os.ftruncate(file, 4 << 20)
    os.close(file)
print("HELD: 60 files")
