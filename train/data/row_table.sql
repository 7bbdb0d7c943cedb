CREATE TABLE rows (
    number INTEGER PRIMARY KEY, source INTEGER, row TEXT, id TEXT, key BLOB, label TEXT, problem TEXT,
    body TEXT, licence TEXT, decisions TEXT, reason TEXT, evidence TEXT, shown TEXT, met BLOB
);
CREATE TABLE position (source INTEGER PRIMARY KEY, read INTEGER);
CREATE TABLE done (phase TEXT PRIMARY KEY);
CREATE TABLE attempts (task TEXT PRIMARY KEY, correct INTEGER, attempts INTEGER);
