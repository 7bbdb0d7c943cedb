# group: processes
# tries: a bomb of forks in bash, each of which starts two more
# breach: a process of it is left
# expect: timeout
# output: HELD: lit
# held-by: limits, notify, the supervisor
# limits: wall_s=1
echo "HELD: lit"
bomb() { bomb | bomb & }
bomb
while :; do sleep 1; done
