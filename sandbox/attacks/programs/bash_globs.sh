# group: memory
# tries: names and words without end: all files of the machine in one line, and a hundred million numbers
# breach: it holds them all
# expect: error memory_limit signaled timeout
# output: HELD: begun
# held-by: limits, landlock
# limits: memory_bytes=120000000 wall_s=15
echo "HELD: begun"
shopt -s globstar nullglob dotglob
words=(/home/** /root/** /etc/** /tmp/** /var/**)
((${#words[@]} > 8)) && echo "BREACH: ${#words[@]} names of others"
words=({1..100000000})
((${#words[@]} > 1)) && echo "BREACH: ${#words[@]}"
exit 1
