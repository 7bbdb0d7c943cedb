# group: output
# tries: displays of types that nobody takes: of scripts, with control characters, without an end of the line
# breach: one of them is shown
# expect: ok
# output: , 1 displays
# forbid: DISPLAY (?!image/png 5 )
# held-by: six types are taken, no other
# displays: yes
import os

os.mkdir(".display")
forged = (
    *(b"text/javascript\nalert(1)", b"application/x-forged\nx", b"text/html\r\nx", b" text/html\nx"),
    *(b"text/html; charset=utf-7\nx", b"TEXT/HTML\nx", b"\xff\xfe\nx", b"\x1b]0;owned\x07\nx", b"\nx"),
    *(b"text/html" + b" " * (3 << 20), b"a" * (3 << 20) + b"\nx", b"text/html\0\nx", b"image/png\n\x89PNG\n"),
)
for number, content in enumerate(forged):
    with open(f".display/{number}", "wb") as file:
        file.write(content)
print("HELD: written")
