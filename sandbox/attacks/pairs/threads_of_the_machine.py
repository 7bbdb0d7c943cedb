# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.004 0.01
# through: sysinfo clone
# tries: how many threads the machine has: 40 more or less
# open: everywhere
import threading

threading.stack_size(1 << 16)
gates = []
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    if symbol and not gates:
        gates = [threading.Event() for _ in range(40)]
        for gate in gates:
            threading.Thread(target=gate.wait, daemon=True).start()
    elif gates and not symbol:
        for gate in gates:
            gate.set()
        gates = []
for gate in gates:
    gate.set()
# %% receiver
import ctypes

libc = ctypes.CDLL(None)
room = (ctypes.c_char * 128)()
levels = []
for slot in range(COUNT):
    at(slot + 0.9)
    libc.sysinfo(room)
    levels.append(int.from_bytes(room[80:82], "little"))
decide(levels)
