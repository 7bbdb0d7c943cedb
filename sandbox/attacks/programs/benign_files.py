# group: benign
# tries: nothing bad: to write, append, rename, list and read files in the working directory
# expect: ok
# output: \['a.txt', 'folder'\] one two
# needs: scratch
import os
from pathlib import Path

Path("b.txt").write_text("one ")
with open("b.txt", "a") as file:
    file.write("two")
os.rename("b.txt", "a.txt")
Path("folder").mkdir()
print(sorted(os.listdir(".")), Path("a.txt").read_text())
