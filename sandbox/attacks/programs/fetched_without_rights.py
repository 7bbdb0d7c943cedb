# group: files
# tries: files and a folder that their owner itself may not read, and set-user-ID bits
# breach: the supervisor fails at them
# expect: ok
# output: FETCHED [0-4] files
# forbid: swordfish
# held-by: what cannot be opened is left out
# fetch: shut written run shut_folder/inside
import os

os.mkdir("shut_folder")
for name in ("shut", "written", "run", "shut_folder/inside"):
    with open(name, "w") as file:
        file.write("mine")
for name, mode in (("shut", 0), ("written", 0o222), ("run", 0o6777), ("shut_folder", 0)):
    try:
        os.chmod(name, mode)
    except OSError:
        continue
print("HELD: locked")
