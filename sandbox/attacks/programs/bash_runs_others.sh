# group: processes
# tries: programs of the machine that are no tools of a shell program
# breach: one of them runs
# expect: ok
# output: HELD: [1-9]
# held-by: landlock
there=0
for program in /usr/bin/perl /usr/bin/python3 /usr/bin/gcc /usr/bin/mount /usr/bin/su /usr/bin/passwd /usr/bin/unshare \
  /usr/bin/nsenter /usr/bin/setsid /usr/bin/setpriv /usr/bin/chsh /usr/bin/dpkg /usr/bin/apt-get /usr/sbin/chroot; do
  [ -e "$program" ] || continue
  there=$((there + 1))
  "$program" --version >/dev/null 2>&1
  (($? == 126)) || echo "BREACH: $program runs"
done
echo "HELD: $there"
