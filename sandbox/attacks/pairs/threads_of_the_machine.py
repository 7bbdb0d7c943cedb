# mypy: ignore-errors
# when: live
# bits: 5
# through: sysinfo clone
# tries: how many threads the machine has
# open: everywhere
import os, threading, time
for _ in range(1 + SECRET):
    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
time.sleep(HOLD_S)
os._exit(0)
# %% receiver
import ctypes, time
libc = ctypes.CDLL(None)
room = (ctypes.c_char * 128)()
def threads():
    libc.sysinfo(room)
    return int.from_bytes(room[80:82], "little")
deadline = time.monotonic() + HOLD_S
before = threads()
while time.monotonic() < deadline:
    now = threads()
    time.sleep(0.02)
    if now > before and threads() == now:
        say(now - before - 1)
        break
    before = min(before, now)
