# group: files
# tries: a flood of here-documents, each a file without a name that it keeps open
# breach: it keeps more than its files may be
# expect: ok
# output: HELD: \d
# held-by: notify, limits
# limits: files=4 file_bytes=2000000 wall_s=20
printf -v text '%*s' 1000000 ''
held=0
for ((n = 0; n < 200; n++)); do
  exec {fd}<<<"$text" || break
  held=$((held + 1))
done 2>/dev/null
((held <= 64)) && echo "HELD: $held" || echo "BREACH: $held files of a megabyte"
