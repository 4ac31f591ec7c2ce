"""What Prometheus is told: valid in both of its formats, right in number, and cheap for the database."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from engine import Inside, insert, states
from redrive import InvalidOption, Queue, metrics
from redrive.figures import Figures
from redrive.metrics import Fleet, Kept, OfFleet, OfWorker, Page
from redrive.stats import Depth
from redrive.tally import Tally
from support import wait_for
from test_tally import ended

OPEN = "application/openmetrics-text; version=1.0.0"
FIGURES = Figures(
    depths=[Depth(kind='mail\n"x"', pending=3, due=2, retrying=1, running=4, dead=5, oldest_due=1.5, most=10_000)],
    alive=2,
    silent=1,
    slots=20,
    in_flight=4,
    complaining=1,
    late=1,
    known=frozenset(),
)


def samples(text: bytes, parse: Any = plain) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its labels' values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def get(port: int, path: str = "/metrics") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize(("accept", "parse"), [("", plain), (OPEN, openmetrics)])
def test_both_formats_can_be_read_and_say_the_same(accept, parse):
    tally = Tally()
    tally.succeeded([ended("mail", 0.05), ended("mail", 5.0)])
    tally.count("mail", "died")
    page = Page(OfWorker(tally.totals, {"worker": "w", "version": "1"}), OfFleet(lambda: FIGURES), process=True)
    text, content_type = page.render(accept)
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
    found = samples(text, parse)
    assert found["redrive_jobs_total", "mail", "succeeded"] == 2
    assert found["redrive_jobs_total", "mail", "died"] == 1
    assert found["redrive_job_run_seconds_count", "mail"] == 2
    assert found["redrive_job_run_seconds_sum", "mail"] == pytest.approx(5.05)
    assert found["redrive_job_run_seconds_bucket", "mail", "0.1024"] == 1
    assert found["redrive_job_run_seconds_bucket", "mail", "+Inf"] == 2
    kind = FIGURES.depths[0].kind
    assert found["redrive_queue_jobs", kind, "dead"] == 5
    assert found["redrive_oldest_due_seconds", kind] == 1.5
    assert found["redrive_workers", "alive"] == 2
    assert found["redrive_kinds_unknown",] == 1
    assert found["redrive_queue_jobs_most",] == 10_000
    assert found["process_resident_memory_bytes",] > 0
    assert found["redrive_database_up",] == 1


def test_a_database_that_does_not_answer_leaves_its_figures_out_and_is_not_pestered():
    asked: list[int] = []

    def ask() -> Figures:
        asked.append(1)
        raise psycopg.OperationalError("away")

    kept = Kept()
    page = Page(OfFleet(lambda: kept.get(ask)))
    for _ in range(3):
        assert samples(page.render()[0]) == {("redrive_database_up",): 0}
    assert len(asked) == 1


def test_many_scrapers_at_once_ask_once(monkeypatch):
    asked: list[int] = []
    kept, together = Kept(), threading.Barrier(8)

    def ask() -> Figures:
        asked.append(1)
        return FIGURES

    def scrape() -> None:
        together.wait(10)
        assert kept.get(ask) is FIGURES

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(asked) == 1
    monkeypatch.setattr("redrive.metrics.RESTS", 0)
    short = Kept(kept_for=0.0)
    short.get(ask)
    short.get(ask)
    assert len(asked) == 3


def test_the_desks_page_says_how_it_stands_with_all(db, conn):
    insert(conn, "mail", status="dead")
    insert(conn, "mail")
    queue = Queue(db)
    found = samples(Fleet(queue).page()[0])
    assert found["redrive_queue_jobs", "mail", "dead"] == found["redrive_queue_jobs", "mail", "due"] == 1
    assert found["redrive_workers", "alive"] == 0
    again = Fleet(queue)
    assert {**samples(asyncio.run(again.page_async())[0]), ("redrive_oldest_due_seconds", "mail"): 0} == {
        **found,
        ("redrive_oldest_due_seconds", "mail"): 0,
    }
    conn.execute("delete from redrive.jobs")
    assert samples(again.page()[0])["redrive_queue_jobs", "mail", "dead"] == 1  # kept for a while
    queue.close()
    gone = Fleet(Queue("postgresql://nobody@127.0.0.1:1/none"))
    assert samples(asyncio.run(gone.page_async())[0]) == {("redrive_database_up",): 0}


def test_without_the_extra_it_is_said_what_to_install(monkeypatch, db):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(InvalidOption, match=r"redrive\[prometheus\]"):
        metrics.demand()
    queue = Queue(db, metrics_port=free_port())
    queue.handler("mail")(lambda _payload: None)
    with pytest.raises(InvalidOption, match=r"redrive\[prometheus\]"):
        queue.run(once=True)
    queue.close()


def test_a_worker_answers_for_itself_and_for_all_op_08(db, conn):
    """OP-08: /health goes by the loops, not by the process. CN-01: that it hears is told. OP-04: nothing secret is."""
    queue = Queue(db, metrics_port=free_port())

    @queue.handler("mail")
    async def mail(_payload):
        pass

    queue.enqueue_many("mail", [{}] * 5)
    insert(conn, "other")
    with Inside(queue) as inside:
        worker, port = inside.worker, queue.settings.metrics_port
        wait_for(lambda: states(conn).get("succeeded") == 5 and worker.scrape.port)
        status, text = get(port)
        found = samples(text)
        assert status == 200
        assert found["redrive_jobs_total", "mail", "succeeded"] == 5
        assert found["redrive_job_wait_seconds_count", "mail"] == 5
        assert found["redrive_queue_jobs", "other", "due"] == 1
        assert found["redrive_kinds_unknown",] == 1
        assert found["redrive_worker_healthy",] == 1
        assert found["redrive_worker_slots",] == 10
        assert get(port, "/health") == (200, b"healthy\n")
        assert get(port, "/other")[0] == 404
        worker.pruner.trouble = "it is stuck\n  with password=hunter2 and \ud800"
        assert get(port, "/health") == (503, b"pruner loop: it is stuck with password=*** and \xef\xbf\xbd\n")
        assert samples(get(port)[1])["redrive_worker_healthy",] == 0
        wait_for(lambda: samples(get(port)[1])["redrive_worker_listens",] == 1)
        worker.listener.hears = False
        assert samples(get(port)[1])["redrive_worker_listens",] == 0
        [(sessions,)] = conn.execute(
            "select count(*) from pg_stat_activity where application_name like %s", (f"redrive % {worker.name}",)
        ).fetchall()
        assert sessions <= 4
    with pytest.raises(urllib.error.URLError):
        get(port)
    queue.close()


def test_an_outcome_that_has_to_wait_for_somebodys_lock_does_not_make_a_worker_ill(db, conn):
    """The probe would start it anew and run its other jobs twice, and the row would be as locked as before."""
    queue = Queue(db, metrics_port=free_port())
    with psycopg.connect(db) as somebody:
        queue.handler("mail")(lambda _payload: somebody.execute("select from redrive.jobs for update"))
        job = queue.enqueue("mail")
        with Inside(queue) as inside:
            wait_for(lambda: "somebody has locked its row" in inside.worker.complaints(), 30)
            assert get(queue.settings.metrics_port, "/health") == (200, b"healthy\n")
            somebody.rollback()
            wait_for(lambda: inside.worker.complaints() == "", 20)
            assert states(conn) == {"succeeded": 1}, job
    queue.close()


def test_a_port_that_is_taken_is_complained_of_and_tried_again(db):
    queue = Queue(db, metrics_port=free_port())
    queue.handler("mail")(lambda _payload: None)
    with Inside(queue) as first:
        wait_for(lambda: first.worker.scrape.port)
        with Inside(queue) as second:
            wait_for(lambda: "can't listen at 127.0.0.1" in second.worker.complaints())
            first.stop()
            wait_for(lambda: second.worker.scrape.port, 20)
            wait_for(lambda: second.worker.complaints() == "")
    queue.close()


def test_each_of_several_processes_answers_at_a_port_of_its_own(start_worker):
    port = free_port()
    start_worker(
        "from redrive import Queue\nqueue = Queue()\n@queue.handler('mail')\ndef mail(payload): pass\n",
        "--processes",
        "2",
        "--metrics-port",
        str(port),
    )

    def name(port: int) -> str:
        try:
            found = samples(get(port)[1])
        except (urllib.error.URLError, ConnectionError):
            return ""
        return next((key[1] + key[2] + key[3] for key in found if key[0] == "redrive_worker_info"), "")

    wait_for(lambda: name(port) and name(port + 1), 30)
    assert name(port) != name(port + 1)
