# group: benign
# tries: nothing bad: temporary files and folders where the environment says
# expect: ok
# output: ^written 5$
# needs: scratch
import os
import tempfile

with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w+", dir=folder) as file:
    file.write("hello")
    file.flush()
    print("written", os.path.getsize(file.name))
