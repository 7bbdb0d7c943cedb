# group: secrets
# tries: a file of the trainer that every user may read, by every means that bash and its tools have
# breach: its text is read
# expect: ok
# output: HELD: 10
# forbid: swordfish
# held-by: landlock
# stdin: facts
read -r facts
file=$(sed 's/.*"bait_file": "\([^"]*\)".*/\1/' <<<"$facts")
refused=0
no() { refused=$((refused + 1)); }
cat "$file" || no
head -c 20 "$file" || no
echo "$(<"$file")" | grep . || no
grep . "$file" || no
sed p "$file" || no
tar -cf - "$file" | grep -a swordfish || no
. "$file" || no
while read -r line; do echo "$line" | grep . ; done <"$file" || no
cp "$file" copy || no
(exec 9<"$file" && cat <&9) || no
echo "HELD: $refused"
