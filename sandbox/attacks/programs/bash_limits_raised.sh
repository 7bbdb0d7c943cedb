# group: memory
# tries: to raise its own limits
# breach: one is higher than before
# expect: ok
# output: HELD: \d
# held-by: seccomp, capabilities
tried=0
for which in v u f t n i c l q; do
  tried=$((tried + 1))
  before=$(ulimit -H -$which)
  ulimit -$which unlimited 2>/dev/null
  ulimit -H -$which 99999999 2>/dev/null
  [ "$(ulimit -H -$which)" = "$before" ] || echo "BREACH: -$which was $before"
done
echo "HELD: $tried"
