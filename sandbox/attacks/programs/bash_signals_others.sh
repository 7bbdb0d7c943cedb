# group: others
# tries: to kill and stop the pool's processes, its own parent, and everybody at once
# breach: a signal arrives
# expect: ok
# output: HELD: [1-9]
# held-by: seccomp, notify, uid, landlock
# stdin: facts
read -r facts
pids=$(grep -o '"pids": \[[^]]*' <<<"$facts" | grep -o '[0-9][0-9]*')
tried=0
for pid in $PPID $pids 1 -1 0 -$$ -1000000; do
  for signal in 0 STOP KILL; do
    tried=$((tried + 1))
    kill -$signal -- "$pid" 2>/dev/null && echo "BREACH: $signal to $pid"
  done
done
echo "HELD: $tried"
