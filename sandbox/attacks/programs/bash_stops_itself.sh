# group: cpu
# tries: to stop itself, so that it never ends
# breach: no end by the wall clock
# expect: timeout
# output: HELD: stopping
# held-by: wall clock
# limits: wall_s=1
echo "HELD: stopping"
kill -STOP $$
echo "BREACH: gone on"
