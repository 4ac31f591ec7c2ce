"""Threads for sync handlers: at most so many, one thing at a time each, and none that keeps the process alive."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

from redrive.threads import Threads


def test_no_more_threads_than_most_however_much_is_submitted(wait_for):
    threads, gate, names, lock = Threads(3, "t"), threading.Event(), [], threading.Lock()

    def work():
        with lock:
            names.append(threading.current_thread().name)
        gate.wait(10)

    for _ in range(10):
        threads.submit(work)
    wait_for(lambda: len(names) == 3)
    gate.set()
    wait_for(lambda: len(names) == 10)
    assert set(names) == {"t-1", "t-2", "t-3"}
    threads.close()


def test_a_thread_that_is_idle_is_used_again_before_another_is_started(wait_for):
    threads, names = Threads(5, "t"), []
    for number in range(5):
        threads.submit(lambda: names.append(threading.current_thread().name))
        wait_for(lambda number=number: len(names) == number + 1)
        wait_for(lambda: threads._idle._value == 1)
    assert names == ["t-1"] * 5
    threads.close()


def test_idle_threads_end_with_close(wait_for):
    threads, started = Threads(2, "t"), []
    for _ in range(2):
        threads.submit(lambda: started.append(threading.current_thread()))
    wait_for(lambda: started)
    threads.close()
    wait_for(lambda: not any(thread.is_alive() for thread in started))


def test_a_hung_thread_does_not_keep_the_process():
    source = """
        import threading, time
        from redrive.threads import Threads
        begun = threading.Event()
        def hang():
            begun.set()
            time.sleep(60)
        threads = Threads(1, "t")
        threads.submit(hang)
        begun.wait()
        threads.close()
    """
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", textwrap.dedent(source)], check=True, timeout=30)
    assert time.monotonic() - began < 20
