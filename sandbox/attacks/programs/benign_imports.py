# group: benign
# tries: nothing bad: to import much of the standard library late
# expect: ok
# output: ^imported 14$
# limits: wall_s=20 cpu_s=20
import csv
import lzma
import queue
import subprocess
import zoneinfo

print("imported", 14 if zoneinfo.ZoneInfo("UTC") and csv and lzma and queue and subprocess else 0)
