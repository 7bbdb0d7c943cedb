# group: memory
# tries: to write its own memory, and what the kernel lets a process say about itself
# breach: one of these files opens for writing
# expect: ok
# output: HELD: [1-9]
# held-by: landlock
tried=0
for who in self thread-self $$ $PPID; do
  for name in mem oom_score_adj oom_adj clear_refs comm autogroup loginuid coredump_filter timerslack_ns uid_map \
    gid_map setgroups sched attr/current attr/exec make-it-fail task/$$/comm; do
    tried=$((tried + 1))
    (exec 9>>"/proc/$who/$name") 2>/dev/null && echo "BREACH: $who/$name"
    (exec 9<>"/proc/$who/$name") 2>/dev/null && echo "BREACH: $who/$name"
  done
done
echo "HELD: $tried"
