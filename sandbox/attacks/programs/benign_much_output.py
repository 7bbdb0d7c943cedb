# group: benign
# tries: nothing bad: half a megabyte of lines
# expect: ok
# output: \A0 x{100}
# truncated: no
for number in range(5000):
    print(number, "x" * 100)
