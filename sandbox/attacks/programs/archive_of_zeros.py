# group: files
# tries: a small archive that unpacks to a hundred times the room for a file
# breach: it is written
# expect: error
# output: before
# forbid: after
# held-by: file size limit
import io
import zipfile

packed = io.BytesIO()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as member:
    for _ in range(400):
        member.write(bytes(1 << 20))
print("before", len(packed.getvalue()))
zipfile.ZipFile(packed).extractall()
print("after")
