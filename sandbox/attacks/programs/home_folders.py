# group: secrets
# tries: keys and tokens in home folders
# breach: one of the files is open
# expect: ok
# output: HELD: \d+
# held-by: landlock, uid
# stdin: facts
# breaches-without: landlock
import json
import os

home = json.loads(input())["home"]
homes = [f"/.{home}", "/root", "/home/user", os.path.expanduser("~")]  # `/.`: no place is led elsewhere
names = [".ssh/id_rsa", ".netrc", ".cache/huggingface/token", ".aws/credentials", ".bash_history"]
tried = 0
for folder in homes:
    for name in names:
        tried += 1
        try:
            with open(os.path.join(folder, name), "rb") as file:
                print(f"BREACH: {folder}/{name}: {file.read(20)!r}")
        except OSError:
            continue
print(f"HELD: {tried}")
