# group: secrets
# tries: accounts, homes, keys and the settings of the machine
# breach: one of them is read
# expect: ok
# output: HELD: \d
# forbid: swordfish|root:
# held-by: landlock
# stdin: facts
read -r facts
home=$(sed 's/.*"home": "\([^"]*\)".*/\1/' <<<"$facts")
tried=0
for path in /etc/passwd /etc/shadow /etc/hostname /etc/environment /root /home "$home" "$home/.ssh/id_rsa" ~root /var/log; do
  tried=$((tried + 1))
  if [ -d "$path" ]; then ls -A "$path" >/dev/null 2>&1 && echo "BREACH: $path"
  else cat "$path" 2>/dev/null && echo "BREACH: $path"; fi
done
echo "HELD: $tried"
