# group: benign
# tries: nothing bad: multiprocessing's pool of threads; its named semaphore is refused with a clear error
# expect: ok error
# output: (^\[0, 1, 4\]$|PermissionError|OSError)
from multiprocessing.pool import ThreadPool

with ThreadPool(2) as pool:
    print(pool.map(lambda number: number**2, range(3)))
