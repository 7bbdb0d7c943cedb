# mypy: ignore-errors
# when: live
# bits: 1
# slots: 0.001 0.003
# through: epoll_create1 epoll_ctl clock_gettime
# tries: how long the kernel's one lock for epolls of epolls is held, beside somebody who has it look at many
# open: everywhere
import select

tops = [select.epoll() for _ in range(24)]
leaves = [select.epoll() for _ in range(24)]
for top in tops:
    for leaf in leaves:
        top.register(leaf, select.EPOLLIN)
last = select.epoll()
for slot, symbol in enumerate(SYMBOLS):
    at(slot)
    end = START + (slot + 1) * SLOT_S
    while symbol and _time.monotonic() < end:
        for leaf in leaves:
            leaf.register(last, select.EPOLLIN)
            leaf.unregister(last)
# %% receiver
import select
import time

clock = time.perf_counter
one, other = select.epoll(), select.epoll()
def ask():
    start = clock()
    one.register(other, select.EPOLLIN)
    taken = clock() - start
    one.unregister(other)
    return taken
levels = []
for slot in range(COUNT):
    at(slot + 0.1)
    end, taken = START + (slot + 0.9) * SLOT_S, []
    while not taken or time.monotonic() < end:
        taken.append(ask())
    levels.append(sorted(taken)[len(taken) * 3 // 4])
decide(levels)
