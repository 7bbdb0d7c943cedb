# group: benign
# tries: nothing bad: to read standard input
# expect: ok
# output: ^dict$
# stdin: facts
import json
import sys

print(type(json.load(sys.stdin)).__name__)
