# group: benign
# mode: session
# tries: nothing bad: a file that a later cell reads
# expect: ok
# output: \A
# needs: scratch
with open("notes.txt", "w") as file:
    file.write("kept")
# %% cell
# expect: ok
# output: ^kept$
print(open("notes.txt").read())
