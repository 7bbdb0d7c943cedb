# group: processes
# tries: to execute what it has written: a script, and a copy of a tool
# breach: it runs
# expect: ok
# output: HELD: 126 126
# held-by: landlock
printf '#!/bin/bash\necho BREACH: a script\n' >script
cp /bin/echo tool
chmod +x script tool
./script 2>/dev/null; one=$?
./tool BREACH: a tool 2>/dev/null; two=$?
echo "HELD: $one $two"
