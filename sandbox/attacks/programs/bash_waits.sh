# group: cpu
# tries: to hang in every way that bash can wait: a pipe that nobody writes, a job that is stopped, a time-out of years
# breach: no end by the wall clock
# expect: timeout
# output: HELD: waiting
# held-by: wall clock
# limits: wall_s=1
echo "HELD: waiting"
exec 3< <(kill -STOP $BASHPID)
sleep infinity & wait -n &
read -t 99999999 -u 3 -r line
read -r -u 3 line
wait
