# mypy: ignore-errors
# group: output
# tries: the exit code that means an uncaught MemoryError
# breach: the result is ok
# expect: memory_limit
# output: \A
# held-by: every such status is a failure
import os

os._exit(86)
# %% call
# tries: the exit code of a child that could not be confined
# expect: error
# output: \A
import os

os._exit(125)
# %% call
# tries: an exit code larger than a byte, whose lowest byte is 0
# expect: ok
# output: \A
import sys

sys.exit(1 << 8)
