# group: benign
# tries: nothing bad: integers of many digits
# expect: ok
# output: ^9332.* 5736$
import math
import sys

sys.set_int_max_str_digits(0)
print(str(math.factorial(100))[:4], len(str(math.factorial(2000))) + 0)
