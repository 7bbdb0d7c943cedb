# group: memory
# tries: many processes that each stay below the limit and are together far above it
# breach: they all hold theirs
# expect: memory_limit
# output: HELD: begun
# held-by: the supervisor
# limits: memory_bytes=120000000 wall_s=20
echo "HELD: begun"
hold() {
  text=$(head -c 24000000 /dev/zero | tr '\0' x)
  sleep 10
  echo "BREACH: ${#text}"
}
for _ in 1 2 3 4 5 6 7 8; do hold & done
wait
