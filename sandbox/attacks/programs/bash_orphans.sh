# group: processes
# tries: to leave processes behind that have lost their parent and ignore signals
# breach: one of them is left
# expect: ok
# output: HELD: gone
# held-by: the supervisor
for _ in 1 2 3; do
  (trap '' HUP INT TERM; (trap '' HUP INT TERM; while :; do sleep 1; done) &) &
done
wait
echo "HELD: gone"
