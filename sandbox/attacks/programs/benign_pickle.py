# group: benign
# tries: nothing bad: to pickle an object of its own class
# expect: ok
# output: ^Point\(x=1, y=2\)$
import dataclasses
import pickle


@dataclasses.dataclass
class Point:
    x: int
    y: int


print(pickle.loads(pickle.dumps(Point(1, 2))))
