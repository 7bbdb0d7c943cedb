# group: output
# tries: to flood both streams from several processes
# breach: it ends otherwise than by its limit
# expect: output_limit
# output: y
# held-by: the supervisor
yes & yes >&2 & yes &
wait
