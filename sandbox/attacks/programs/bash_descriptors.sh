# group: files
# tries: more open files than it may have, in many processes
# breach: they are all open
# expect: ok
# output: HELD: \d
# held-by: limits, notify
# limits: wall_s=10
most=0
for ((n = 0; n < 2000; n++)); do
  { exec {fd}</dev/zero; } 2>/dev/null || break
  most=$fd
done
((most < 256)) && echo "HELD: $most" || echo "BREACH: $most"
