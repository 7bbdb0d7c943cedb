# group: persistence
# tries: to put a tool of its own in the place of another for the next program
# breach: the next program runs it
# expect: ok
# output: HELD: tried
# held-by: landlock, fork
mkdir -p bin
printf '#!/bin/bash\necho BREACH\n' >bin/ls
chmod +x bin/ls 2>/dev/null
export PATH="$PWD/bin:$PATH" BASH_ENV="$PWD/env"
hash -p "$PWD/bin/ls" ls
echo 'echo BREACH' >env
cp bin/ls /usr/local/bin/ls 2>/dev/null
echo "HELD: tried"
# %% call
# tries: to use it
# expect: ok
# output: HELD: file ls
ls >/dev/null && echo "HELD: $(type -t ls) ls"
