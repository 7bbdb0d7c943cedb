# group: files
# tries: to open devices and the kernel's own files for reading and writing
# breach: one opens
# expect: ok
# output: HELD: \d
# held-by: landlock
tried=0
for path in /dev/mem /dev/kmsg /dev/sda /dev/vda /dev/tty /dev/ptmx /dev/loop0 /proc/sys/kernel/core_pattern \
  /proc/sysrq-trigger /sys/power/state /proc/kcore /sys/kernel/uevent_helper /sys/fs/cgroup/cgroup.procs; do
  tried=$((tried + 1))
  (exec 9<"$path") 2>/dev/null && echo "BREACH: read $path"
  (exec 9>>"$path") 2>/dev/null && echo "BREACH: write $path"
done
echo "HELD: $tried"
