# group: cpu
# tries: more processor time than wall time, with threads outside the interpreter's lock
# breach: ten seconds are used
# expect: timeout
# output: started
# held-by: rlimits
# limits: wall_s=20 cpu_s=1
import hashlib
import threading

print("started")
work = (b"password", b"salt", 20_000_000)
threads = [threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", *work)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("BREACH: all done")
