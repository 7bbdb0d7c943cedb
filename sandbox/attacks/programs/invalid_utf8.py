# group: output
# tries: bytes that are no text: overlong forms, halves of surrogates, cut sequences
# breach: the result is no valid text, or the words around them are lost
# expect: ok
# output: first\ufffd+.*\ufffd+last
# held-by: repair of UTF-8
import sys

sys.stdout.buffer.write(b"first\xff\xfe\xc0\x80 \xed\xa0\x80 \xf8\x88\x80\x80\x80 \xe2\x82last")
