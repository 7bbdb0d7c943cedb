# group: processes
# tries: a bomb of coprocesses, disowned, that answer each other
# breach: one of them is left
# expect: timeout error
# output: HELD: lit
# held-by: limits, notify, the supervisor
# limits: wall_s=1
echo "HELD: lit"
light() {
  while :; do
    { coproc light; } 2>/dev/null
    disown -a
    echo go >&"${COPROC[1]}"
  done
} 2>/dev/null
light
