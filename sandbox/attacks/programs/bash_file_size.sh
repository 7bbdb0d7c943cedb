# group: files
# tries: one file that is larger than it may be, by one process after another
# breach: it is
# expect: ok
# output: HELD: \d
# held-by: limits
# limits: file_bytes=100000 wall_s=10
for _ in 1 2 3; do head -c 1000000 /dev/zero >>big 2>/dev/null; done
truncate -s 1000000 big 2>/dev/null
size=$(wc -c <big)
((size <= 100000)) && echo "HELD: $size" || echo "BREACH: $size bytes"
