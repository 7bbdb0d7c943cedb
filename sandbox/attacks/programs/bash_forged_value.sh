# group: output
# tries: to answer in the place of the sandbox, on every descriptor that it has
# breach: a value appears, or the call ends otherwise
# expect: ok
# output: HELD: written
# value: none
# held-by: the supervisor
for fd in {3..255}; do echo "R FORGED" >&"$fd"; done 2>/dev/null
echo "HELD: written"
