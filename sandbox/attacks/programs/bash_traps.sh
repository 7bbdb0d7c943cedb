# group: others
# tries: to shoot at its parent and at all others from traps of every kind, and while it ends
# breach: a signal arrives
# expect: signaled
# output: HELD: begun
# held-by: notify, uid, landlock
echo "HELD: begun"
shoot() { kill -KILL $PPID -- -1 -$PPID 1 2>/dev/null && echo "BREACH: it arrived"; }
trap shoot EXIT DEBUG ERR RETURN USR1 TERM INT HUP
set -E
false
kill -USR1 $$
wait
trap - TERM
kill -TERM $$
