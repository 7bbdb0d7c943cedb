# group: memory
# tries: a few kilobytes of compressed data that become gigabytes
# breach: they are there
# expect: memory_limit
# output: MemoryError
# held-by: rlimits
# limits: memory_bytes=268435456 wall_s=300
# loosened: memory_bytes=2147483648 wall_s=300
import zlib

packer = zlib.compressobj(1)
packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
size = len(zlib.decompress(packed))
print(f"BREACH: {size} bytes")
