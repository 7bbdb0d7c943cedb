# group: files
# tries: to write, make, move and remove outside its directory
# breach: something is there, or is gone
# expect: ok
# output: HELD: \d
# held-by: landlock
# stdin: facts
read -r facts
folder=$(sed 's/.*"bait_folder": "\([^"]*\)".*/\1/' <<<"$facts")
tried=0
try() {
  tried=$((tried + 1))
  "$@" 2>/dev/null && echo "BREACH: $*"
}
put() { : >"$1"; }
# So written that no library leads them to its own /tmp (csrc/sandbox/places.cpp).
for place in /./tmp /./var/tmp /./dev/shm / .. ../.. "$folder"; do
  try put "$place/rocstar-breach-bash"
  try mkdir "$place/rocstar-breach-folder"
  try cp /bin/echo "$place/rocstar-breach-copy"
  try mv . "$place/rocstar-breach-moved"
done
try rm "$folder/secret"
try mv "$folder/spare" here
try truncate -s 0 "$folder/secret"
try dd if=/dev/zero of="$folder/secret" count=1
try rmdir "$folder"
echo "HELD: $tried"
