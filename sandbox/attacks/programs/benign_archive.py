# group: benign
# tries: nothing bad: an archive in the working directory
# expect: ok
# output: ^b'12345'$
# needs: scratch
import zipfile

with zipfile.ZipFile("archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("inner.txt", "12345")
with zipfile.ZipFile("archive.zip") as archive:
    print(archive.read("inner.txt"))
