# group: benign
# tries: nothing bad: to import much of the standard library late
# expect: ok
# output: ^imported 14$
# limits: wall_s=20 cpu_s=20
import csv
import decimal
import difflib
import email.message
import html.parser
import http.client
import lzma
import multiprocessing.dummy
import queue
import sqlite3
import subprocess
import unittest.mock
import xml.dom.minidom
import zoneinfo

print("imported", 14 if zoneinfo.ZoneInfo("UTC") and csv and lzma and queue and subprocess else 0)
