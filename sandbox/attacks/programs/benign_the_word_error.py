# group: benign
# tries: nothing bad: to print the words that a careless reader takes for a failure
# expect: ok
# output: Error: timeout, MemoryError, Killed
print("Error: timeout, MemoryError, Killed, Traceback (most recent call last):")
