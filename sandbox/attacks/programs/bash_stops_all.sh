# group: cpu
# tries: to be stopped for ever, in all of its processes, with their parent
# breach: no end by the wall clock
# expect: timeout
# output: HELD: stopping
# held-by: wall clock, the supervisor
# limits: wall_s=1
echo "HELD: stopping"
for _ in 1 2 3 4 5 6; do (kill -STOP $BASHPID; echo "BREACH: gone on") & done
kill -STOP $! $$
echo "BREACH: gone on"
