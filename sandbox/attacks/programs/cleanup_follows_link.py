# group: files
# tries: links to the caller's folder, for a cleaner to follow and to empty
# breach: the caller's files are gone after the call
# expect: ok
# output: HELD
# held-by: removal of the scratch directory, seccomp
# stdin: facts
import json
import os

facts = json.loads(input())
try:
    os.symlink(facts["bait_folder"], "folder")
    os.symlink(facts["bait_file"], "file")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("HELD if the caller's files are still there")
