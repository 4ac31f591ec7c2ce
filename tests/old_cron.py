"""The script that cron ran before: it reads what waits, does it, and sets the word. No claim and no lock.

``python old_cron.py DSN TABLE "SELECT id ..." "UPDATE ... WHERE id = %s" NAME SECONDS`` notes in ``done`` what it does.
"""

from __future__ import annotations

import sys
import time

import psycopg


def main(dsn: str, table: str, find: str, mark: str, *rest: str) -> None:
    """Turn until the time is over."""
    name, seconds = rest
    end = time.monotonic() + float(seconds)
    with psycopg.connect(dsn, autocommit=True) as conn:
        while time.monotonic() < end:
            for (key,) in conn.execute(find).fetchall():
                conn.execute("INSERT INTO done (row_key, by) VALUES (%s, %s)", [f"{table} {key}", name])
                time.sleep(0.001)
                conn.execute(mark, [key])
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
