# group: benign
# tries: nothing bad: a pool of threads
# expect: ok
# output: ^328350$
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(8) as executor:
    print(sum(executor.map(lambda number: number * number, range(100))))
