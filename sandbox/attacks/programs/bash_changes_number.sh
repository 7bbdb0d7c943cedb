# group: cpu
# tries: to burn its processor time in processes that hand on to the next and end, so that no look finds one twice
# breach: they go on after it is spent
# expect: timeout
# output: HELD: begun
# held-by: the supervisor
# limits: cpu_s=1 wall_s=260
echo "HELD: begun"
hop() {
  for ((n = 0; n < 4000; n++)); do :; done
  hop &
}
(hop &)
(hop &)
sleep 240
echo "BREACH: four minutes"
