# group: benign
# tries: nothing bad: a database in memory and one in a file
# expect: ok
# output: 4950 4950
# needs: scratch
import sqlite3

totals = []
for place in (":memory:", "numbers.db"):
    with sqlite3.connect(place) as connection:
        connection.execute("create table n (i integer)")
        connection.executemany("insert into n values (?)", [(i,) for i in range(100)])
        totals.append(connection.execute("select sum(i) from n").fetchone()[0])
print(*totals)
