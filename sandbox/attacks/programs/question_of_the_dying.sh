# group: others
# tries: to be gone when the supervisor answers its questions about new files, in processes one after the other
# breach: another call gets no answer, or a process is left
# expect: ok error
# output: asked
# held-by: the supervisor answers by a number that the kernel gave, and takes an answer that nobody waits for
for _ in {1..40}; do
  (for f in {1..8}; do : > "f$f" & done; kill -9 $BASHPID) 2>/dev/null
done
echo asked
# %% meanwhile
# tries: the same by threads of one process
# flavour: stdlib
# expect: ok error
# output: \A
import os
import threading


def ask(number: int) -> None:
    while True:
        try:
            os.mkdir(f"folder{number}")
            os.rmdir(f"folder{number}")
        except OSError:
            continue


for number in range(24):
    threading.Thread(target=ask, args=(number,), daemon=True).start()
threading.Event().wait(0.05)
os._exit(0)
# %% meanwhile
# tries: to run at the same time
# flavour: stdlib
# expect: ok
# output: ^42$
print(6 * 7)
