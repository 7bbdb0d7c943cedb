# group: benign
# tries: nothing bad: to catch exceptions and to print them
# expect: ok
# output: Traceback.*ZeroDivisionError
import traceback

try:
    print(1 // 0)
except ZeroDivisionError:
    print(traceback.format_exc().replace("\n", " "))
