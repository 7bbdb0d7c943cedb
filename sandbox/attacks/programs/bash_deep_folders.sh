# group: persistence
# tries: folders so deep that their path has no room, to keep them from being cleared away
# breach: the next program finds them
# expect: ok error
# output: HELD: \d
# held-by: notify, a scratch directory per call
# limits: files=24 file_bytes=65536 wall_s=30
printf -v name '%*s' 250 ''
deep=0
while mkdir "$name" 2>/dev/null && cd "$name" 2>/dev/null; do
  deep=$((deep + 1))
  ((deep > 5000)) && echo "BREACH: $deep" && break
done
echo "HELD: $deep"
# %% call
# tries: to find them
# expect: ok
# output: HELD: 0$
echo "HELD: $(ls -A | wc -l)"
