# group: others
# tries: to make all others wait: for the disk, by a better place in the queue, by the machine's clock
# breach: it is allowed
# expect: ok
# output: HELD: -?\d
# held-by: seccomp, capabilities
usual=$(nice)
sync -f . 2>/dev/null && echo "BREACH: a whole file system was written out"
[ "$(nice -n -5 nice 2>/dev/null)" = "$usual" ] || echo "BREACH: a better place"
(date -s 2000-01-01 >/dev/null 2>&1) && echo "BREACH: another time"
echo "HELD: $usual"
