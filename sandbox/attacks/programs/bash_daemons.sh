# group: processes
# tries: daemons: forked twice, without descriptors, deaf, disowned, under nohup, that fork on while it ends
# breach: one of them is left
# expect: ok
# output: HELD: gone
# held-by: the supervisor
exec 3< <(sleep 9)  # a clock that needs no fork, when there may be no task left for one
(
  trap '' HUP INT TERM QUIT TTIN TTOU TSTP CONT USR1 USR2 PIPE ALRM CHLD
  exec </dev/null >&- 2>&-
  (while :; do (: & disown) & disown; done) & disown -h
  (nohup bash -c 'while :; do sleep 0.01 & done' &)
) &
disown -a
read -rt 0.2 -u 3
echo "HELD: gone"
