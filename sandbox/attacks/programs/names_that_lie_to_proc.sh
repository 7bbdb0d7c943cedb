# group: cpu
# tries: to spend processor time in processes whose names look like the numbers of /proc/PID/stat
# breach: they go on after it is spent
# expect: timeout
# output: HELD: begun
# held-by: the supervisor reads behind the last bracket
# limits: cpu_s=1 wall_s=260
echo "HELD: begun"
for name in ') Z 0 0 0' ')) S 1 1' $'a\nb) R 1' '()' ') R 1 1 1 1 1 1 1 1 1 1 0 0 0 0 0 0 1' $'\xff)'; do
  cp /bin/sleep "./$name" 2>/dev/null
  (printf '%s' "$name" > "/proc/$BASHPID/comm" 2>/dev/null; exec -a "$name" bash -c 'while :; do :; done') &
done
sleep 240
echo "BREACH: four minutes"
