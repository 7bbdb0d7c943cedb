# group: files
# tries: more files than it may have
# breach: they are all there
# expect: ok error
# output: HELD: \d
# held-by: notify
# limits: files=4 wall_s=10
for ((n = 0; n < 500; n++)); do
  : >"file$n" || break
done 2>/dev/null
((n < 100)) && echo "HELD: $n" || echo "BREACH: $n files"
