# group: files
# tries: links, hard and symbolic, pipes and devices with names
# breach: one is made, or shows the file behind it
# expect: ok
# output: HELD: 5
# forbid: swordfish
# held-by: seccomp, landlock
# stdin: facts
read -r facts
file=$(sed 's/.*"bait_file": "\([^"]*\)".*/\1/' <<<"$facts")
refused=0
for attempt in "ln -s $file one" "ln $file two" "mkfifo three" "mknod four b 8 0" "mknod five c 1 1"; do
  if $attempt 2>/dev/null; then echo "BREACH: $attempt"; else refused=$((refused + 1)); fi
done
cat one two 2>/dev/null
echo "HELD: $refused"
