"""The whole of it in one file: a handler, a job, a worker.

redrive migrate, then ``python quickstart.py`` with DATABASE_URL set.
"""

from __future__ import annotations

from redrive import Queue

queue = Queue()


@queue.handler("greet", max_attempts=5, timeout=30)
def greet(payload: dict[str, str]) -> None:
    """Run one job. An exception here is a retry; the fifth one is a dead job, which waits for a human."""
    print(f"hello {payload['name']}")


if __name__ == "__main__":
    greet.enqueue({"name": "world"})
    queue.run(once=True)  # what is due, then the end; a worker of your own is `redrive worker quickstart:queue`
