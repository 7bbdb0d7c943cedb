# group: processes
# tries: to fill the table of processes with children that nobody waits for
# breach: one of them is left
# expect: timeout
# output: HELD: begun
# held-by: limits, notify, the supervisor
# limits: wall_s=1
echo "HELD: begun"
for n in {1..40}; do : & done 2>/dev/null
exec -a parent sleep 30
