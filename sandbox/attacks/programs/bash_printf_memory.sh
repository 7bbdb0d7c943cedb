# group: memory
# tries: three hundred million characters in one variable, in an array and in the environment of a tool
# breach: it has them
# expect: ok error memory_limit signaled timeout
# output: HELD: \d
# held-by: limits
# limits: memory_bytes=150000000 wall_s=15
echo "HELD: 0"
(printf -v text '%*s' 300000000 ''; echo "BREACH: ${#text}") 2>/dev/null
(printf -v text '%s' "$(head -c 400000000 /dev/zero | tr '\0' x)"; ((${#text} < 400000000)) || echo "BREACH: all of it") 2>/dev/null
(mapfile -t lines < <(yes); echo "BREACH: ${#lines[@]}") 2>/dev/null
:
