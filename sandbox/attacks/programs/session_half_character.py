# group: sessions
# mode: session
# tries: to end a cell in the middle of a character
# breach: the halves meet in the next cell's text, or the text is invalid
# expect: ok
# output: \ufffd
# held-by: repair of UTF-8
import os

os.write(1, b"\xf0\x9f")
# %% cell
# tries: to give the second half
# expect: ok
# output: \ufffd
# forbid: \U0001f600
os.write(1, b"\x98\x80");
