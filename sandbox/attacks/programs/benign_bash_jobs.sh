# group: benign
# tries: jobs, traps, exit codes and a time limit of its own
# expect: ok
# output: ^alive 7 124 143 left$
# limits: wall_s=10
sleep 30 &
job=$!
kill -0 $job && state=alive
(exit 7); code=$?
timeout 0.2 sleep 5; limited=$?
kill $job
wait $job; killed=$?
trap 'echo "$state $code $limited $killed left"' EXIT
[ "$(nproc)" -ge 1 ] || exit 2
seq 100 | head -n 1 >/dev/null
[ "${PIPESTATUS[0]}" -ge 0 ]
