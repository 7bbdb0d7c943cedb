# group: others
# tries: to lower its limits, and its umask, so far that what comes after it cannot start or be cleared away
# breach: a limit changes, or the next program finds something
# expect: ok
# output: HELD: \d
# held-by: seccomp, a scratch directory per call
for which in v u f t n s d; do
  before=$(ulimit -S -$which)
  ulimit -S -$which 1 2>/dev/null
  [ "$(ulimit -S -$which)" = "$before" ] || echo "BREACH: -$which was $before"
done
umask 777
mkdir -p locked/in/ner && echo word >locked/word
: >unreadable
echo "HELD: $?"
# %% call
# tries: to find it
# expect: ok
# output: HELD: 0 0022|HELD: 0 0077
echo "HELD: $(ls -A | wc -l) $(umask)"
