# group: cpu
# tries: processes that share out its processor time among them
# breach: they go on after it is spent
# expect: timeout
# output: HELD: begun
# held-by: the supervisor
# limits: cpu_s=1 wall_s=260
echo "HELD: begun"
for _ in 1 2 3 4 5 6; do while :; do :; done & done
sleep 240
echo "BREACH: four minutes"
