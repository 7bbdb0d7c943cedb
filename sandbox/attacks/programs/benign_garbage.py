# group: benign
# tries: nothing bad: many cycles for the garbage collector
# expect: ok
# output: ^collected$
import gc

for _ in range(100_000):
    cycle: list[object] = []
    cycle.append(cycle)
print("collected" if gc.collect() >= 0 and len(gc.get_objects()) < 200_000 else "kept")
