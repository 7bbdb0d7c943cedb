# group: cpu
# tries: to go on by ignoring every signal that can be ignored
# breach: no end by the wall clock
# expect: timeout
# output: HELD: deaf
# held-by: wall clock
# limits: wall_s=1
for signal in {1..64}; do trap '' "$signal" 2>/dev/null; done
echo "HELD: deaf"
while :; do sleep 1; done
