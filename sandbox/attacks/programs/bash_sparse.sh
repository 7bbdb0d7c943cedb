# group: files
# tries: files that are larger than they may be without having anything in them, and more names than it may have
# breach: one is larger
# expect: ok
# output: HELD: \d
# held-by: limits, notify
# limits: file_bytes=100000 files=8 wall_s=10
largest=0
truncate -s 8E one 2>/dev/null
truncate -s 1T two 2>/dev/null
dd if=/dev/zero of=three bs=1 count=1 seek=10G 2>/dev/null
dd if=/dev/zero of=four bs=1M count=1 seek=1 conv=notrunc 2>/dev/null
head -c 10000000 /dev/zero | cp --sparse=always /dev/stdin five 2>/dev/null
tar -cf six --sparse one two three 2>/dev/null
for file in *; do
  size=$(stat -c %s "$file")
  ((size > largest)) && largest=$size
done
((largest <= 100000)) && echo "HELD: $largest" || echo "BREACH: $largest bytes"
