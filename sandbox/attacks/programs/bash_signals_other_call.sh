# group: others
# tries: to kill another bash program by the numbers near its own
# breach: that program ends, or a signal to a stranger succeeds
# expect: ok
# output: HELD: \d
# held-by: notify, uid, landlock
own=$BASHPID
for ((n = own - 150; n < own + 150; n++)); do
  ((n == own)) && continue
  kill -KILL "$n" 2>/dev/null && echo "BREACH: $n is gone"
done
echo "HELD: $own"
# %% meanwhile
# tries: to live while another program shoots at it
# expect: ok
# output: HELD: alive
sleep 0.5
echo "HELD: alive"
