# group: files
# tries: a folder of the name that is fetched, a name below a file, one file by a longer name
# breach: the answer has something under a name that is no file
# expect: ok
# output: FETCHED 0 files
# held-by: the supervisor takes regular files alone
# fetch: folder file/below
import os

os.mkdir("folder")
with open("folder/inside", "w") as file:
    file.write("x")
with open("file", "w") as file:
    file.write("x")
print("HELD: made")
