# group: secrets
# tries: the environments, commands and memory of the pool's processes, and of its own supervisor
# breach: one of them is read
# expect: ok
# output: HELD: [1-9]
# forbid: swordfish
# held-by: landlock, uid, nnp
# stdin: facts
read -r facts
pids=$(grep -o '"pids": \[[^]]*' <<<"$facts" | grep -o '[0-9][0-9]*')
tried=0
for pid in $PPID $pids $$ self; do
  for name in environ cmdline maps mem status fd/3; do
    tried=$((tried + 1))
    head -c 1 "/proc/$pid/$name" >/dev/null 2>&1 && echo "BREACH: $pid $name"
  done
done
echo "HELD: $tried"
