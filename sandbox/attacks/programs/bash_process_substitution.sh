# group: processes
# tries: to leave readers and writers of process substitutions behind, each blocked on a pipe of its own
# breach: one of them is left
# expect: ok
# output: HELD: \d
# held-by: the supervisor
for _ in 1 2 3 4 5; do
  exec {out}> >(while :; do read -r line; done)
  exec {in}< <(while :; do echo word; done)
done
for path in /proc/self/fd/*; do echo word >"$path"; done 2>/dev/null
echo "HELD: $in $out"
