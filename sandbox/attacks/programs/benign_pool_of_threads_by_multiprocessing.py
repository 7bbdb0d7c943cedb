# group: benign
# tries: nothing bad: multiprocessing's pool of threads, its locks and its queue, in one process
# expect: ok
# output: \A\[0, 1, 4\] 5\n\Z
from multiprocessing import Lock, Queue
from multiprocessing.pool import ThreadPool

with ThreadPool(2) as pool, Lock():
    squares = pool.map(lambda number: number**2, range(3))
queue: "Queue[int]" = Queue()
queue.put(5)
print(squares, queue.get(timeout=2))
