# group: benign
# tries: nothing bad: to import much of the standard library late
# expect: ok
# output: ^imported 14$
# limits: wall_s=20 cpu_s=20
import csv, decimal, difflib, email.message, html.parser, http.client, lzma
import multiprocessing.dummy, queue, sqlite3, subprocess, unittest.mock, xml.dom.minidom, zoneinfo

print("imported", 14 if zoneinfo.ZoneInfo("UTC") and csv and lzma and queue and subprocess else 0)
