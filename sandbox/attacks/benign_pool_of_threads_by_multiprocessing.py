# group: benign
# tries: nothing bad: multiprocessing's pool of threads, which looks like processes
# expect: ok
# output: ^\[0, 1, 4\]$
from multiprocessing.pool import ThreadPool

with ThreadPool(2) as pool:
    print(pool.map(lambda number: number**2, range(3)))
