# group: files
# tries: a hard link to a caller's file, of the name that is fetched, by path and by descriptor
# breach: the answer has the file
# expect: ok
# output: FETCHED 0 files
# forbid: swordfish
# held-by: landlock; the filter (linkat of descriptors)
# stdin: facts
# fetch: one two three
import json
import os

facts = json.loads(input())
made = 0
for source, name in ((facts["bait_file"], "one"), (facts["bait_spare"], "two"), ("/proc/self/fd/0", "three")):
    try:
        os.link(source, name)
        made += 1
    except OSError:
        continue
print(f"BREACH: {made} links" if made else "HELD: no link")
