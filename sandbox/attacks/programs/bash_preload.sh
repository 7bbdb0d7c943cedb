# group: persistence
# tries: to have its own library loaded by every tool, by the next program and by the machine
# breach: the next program loads it, or the machine's list is changed
# expect: ok
# output: HELD: tried
# held-by: landlock, an environment of its own
cp /lib/x86_64-linux-gnu/libz.so.1 own.so 2>/dev/null || cp "$(find /lib -name 'libz.so.1' | head -n 1)" own.so
export LD_PRELOAD="$PWD/own.so" LD_AUDIT="$PWD/own.so" LD_LIBRARY_PATH="$PWD" GLIBC_TUNABLES=glibc.malloc.check=3
export GCONV_PATH="$PWD" LOCPATH="$PWD" MAGIC="$PWD/own.so" BASH_LOADABLES_PATH="$PWD"
ls >/dev/null
for path in /etc/ld.so.preload /etc/ld.so.cache /etc/profile /etc/bash.bashrc /usr/local/lib/own.so; do
  (cat own.so >>"$path") 2>/dev/null && echo "BREACH: $path"
done
echo "HELD: tried"
# %% call
# tries: to see whether it is loaded
# expect: ok
# output: HELD: 0
echo "HELD: $(env | grep -c -E 'own.so|LD_AUDIT|LD_LIBRARY|PATH=/tmp|GCONV|LOADABLES')"
