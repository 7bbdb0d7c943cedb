# group: processes
# tries: to live on under the names of the supervisor, of a fork server and of a thread of the kernel
# breach: it lives on
# expect: ok
# output: HELD: gone
# held-by: the supervisor
for name in _supervisor "python -m rocstar.sandbox.child.zygote" "[kworker/0:1]" init ""; do
  (trap '' HUP TERM; exec -a "$name" sleep 60) &
done
disown -a
sleep 0.1
echo "HELD: gone"
