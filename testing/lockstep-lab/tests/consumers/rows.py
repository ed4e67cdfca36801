"""Reads a binlog with python-mysql-replication, and prints each transaction that inserts into the table test.rows: its GTID
and the first column of each row. It runs until it is killed.

    python rows.py PORT GTID

It goes on after that GTID; an empty one means the begin of the binlog.
"""

import sys

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import MariadbGtidEvent, XidEvent
from pymysqlreplication.row_event import WriteRowsEvent

stream = BinLogStreamReader(
    connection_settings={"host": "127.0.0.1", "port": int(sys.argv[1]), "user": "copy", "passwd": "secret"},
    server_id=4712,
    is_mariadb=True,
    auto_position=sys.argv[2],
    blocking=True,
    only_events=[MariadbGtidEvent, WriteRowsEvent, XidEvent],
    only_schemas=["test"],
    only_tables=["rows"],
)
gtid, rows = "", []
for event in stream:
    if isinstance(event, MariadbGtidEvent):
        gtid, rows = event.gtid, []
    elif isinstance(event, WriteRowsEvent):
        rows += [str(next(iter(row["values"].values()))) for row in event.rows]
    elif rows:
        print(gtid, *rows, flush=True)
