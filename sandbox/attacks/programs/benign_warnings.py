# group: benign
# tries: nothing bad: warnings and logging on standard error
# expect: ok
# output: (?s)done.*UserWarning: careful.*ERROR:root:logged
import logging
import sys
import warnings

warnings.warn("careful")
logging.basicConfig(stream=sys.stderr)
logging.error("logged")
print("done")
