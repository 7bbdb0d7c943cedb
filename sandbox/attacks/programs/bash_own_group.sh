# group: processes
# tries: to put its jobs into process groups of their own, which a signal to the first group does not reach
# breach: a job is left
# expect: ok
# output: HELD: \d
# held-by: seccomp
set -m 2>/dev/null
sleep 30 & sleep 30 & sleep 30 &
disown -a
echo "HELD: $?"
