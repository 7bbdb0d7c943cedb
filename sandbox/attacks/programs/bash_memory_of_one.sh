# group: memory
# tries: one string that doubles without end
# breach: it has more than its limit
# expect: error memory_limit
# output: cannot allocate|HELD|^$
# held-by: limits
# limits: memory_bytes=150000000 wall_s=20
text=xxxxxxxxxxxxxxxx
while :; do
  text=$text$text
  ((${#text} > 200000000)) && echo "BREACH: ${#text}" && exit
done
