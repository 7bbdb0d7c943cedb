# group: output
# tries: escape sequences, NUL, carriage returns and byte order marks that could upset a parser
# breach: anything is lost or added
# expect: ok
# output: \x1b\[2J\x00\r\ufeffseen\x1b\]0;title\x07end
# held-by: framing by length
import sys

sys.stdout.buffer.write("\x1b[2J\x00\r\ufeffseen\x1b]0;title\x07end".encode())
