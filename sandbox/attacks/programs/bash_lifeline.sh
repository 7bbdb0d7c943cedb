# group: processes
# tries: to cut what ends it when the supervisor dies: closing, replacing or copying its socket
# breach: the socket is closed, or a copy is made
# expect: ok
# output: HELD: open
# held-by: seccomp
for fd in {3..255}; do eval "exec $fd>&-"; done 2>/dev/null
exec 250</dev/null
(exec 9>&250) 2>/dev/null && echo "BREACH: a copy"
[ -S /proc/self/fd/250 ] || echo "BREACH: closed"
echo "HELD: open"
