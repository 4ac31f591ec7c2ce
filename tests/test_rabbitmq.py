"""The broker in the desk, in `redrive top`, to the doctor and to Prometheus: as it is, or why that is not known."""

from __future__ import annotations

import asyncio
from contextlib import closing

import psycopg
import pytest

from engine import Inside
from redrive import Queue
from redrive.amqp.management import Broker, Queued, ails
from redrive.amqp.names import queue_name
from redrive.doctor import examine
from redrive.sql import BROKER
from redrive.statements import run
from redrive.store import workers
from redrive.web import desk
from shell import answer, redrive
from test_amqp_management import fill
from test_web import client, post, text

MUTE = "http://ada:hunter2@127.0.0.1:1"


@pytest.fixture
def at_broker(rabbit, vhost, wait_for):
    """The variables that name a broker at which five jobs of kind mail wait, and nobody takes them."""
    asyncio.run(fill(vhost, **{queue_name("redrive", "mail"): 5}))
    name = vhost.rpartition("/")[2]
    wait_for(lambda: sum(each.get("messages", 0) for each in rabbit.api("GET", f"queues/{name}")) == 5)
    return {"broker_url": vhost, "broker_management_url": rabbit.management_url}


def variables(settings: dict[str, str]) -> dict[str, str]:
    return {f"REDRIVE_{name.upper()}": value for name, value in settings.items()}


def page(queue: Queue, path: str) -> str:
    browser = client(desk(queue, local=True))
    answered = browser.get(path)
    assert answered.status_code == 200
    return " ".join(text(answered).split())


def test_it_is_seen_in_the_desk_the_terminal_the_doctor_and_by_prometheus(db, at_broker):
    with closing(Queue(db, **at_broker)) as queue:
        queue.kinds.route("mail", "amqp", by="ada")
        seen = page(queue, "/")
        assert "Is the broker well?" in seen
        assert "5 jobs of kind mail wait at the broker" in seen
        assert "Unacknowledged" in page(queue, "/kinds")
        assert "at the broker" in page(queue, "/kinds?kind=mail")
        scraped = client(desk(queue, local=True)).get("/metrics").text
        assert "redrive_broker_up 1.0" in scraped
        assert 'redrive_broker_jobs{kind="mail",state="ready"} 5.0' in scraped
        with psycopg.connect(db, autocommit=True) as conn:
            [found] = [each for each in examine(queue, conn) if each.check == "rabbitmq"]
        assert (found.level, found.evidence["ready"], found.evidence["consumers"]) == ("bad", 5, 0)
        assert "redrive worker" in found.remedy
    shown = redrive(db, "top", "--once", env=variables(at_broker)).stdout
    assert "at the broker: mail: 5 ready, 0 unacknowledged, 0 consumers" in shown
    assert answer(db, "top", env=variables(at_broker))["broker"]["kinds"][0]["ready"] == 5


def test_a_job_whose_row_stays_is_said_to_be_at_the_broker_and_is_not_stuck(db, conn):
    with closing(Queue(db, broker_management_url=MUTE)) as queue:
        made = queue.enqueue("mail", key="k")
        conn.execute(
            "update redrive.jobs set status = 'running', claims = 1, attempts = 1, locked_by = %s,"
            " locked_at = now() - interval '1 day', updated_at = now() - interval '1 day'",
            [BROKER],
        )
        seen = page(queue, f"/jobs/{made.id}")
        assert "at the broker" in seen
        assert "not known while it is at the broker" in seen
        assert "where it waits or runs" in seen
        assert "Ask it to stop" not in seen
        assert "held by" not in seen
        assert "which is silent" not in page(queue, "/")
        gone = client(desk(queue, local=True)).get("/jobs/999")
        assert gone.status_code == 404
        assert "is at the broker or was run from there" in text(gone)


def test_the_doctor_finds_jobs_whose_messages_were_thrown_away(db, conn, at_broker):
    lost = "1 job of kind {} went to the broker, the first 1 d ago, and nothing of it is there: was a queue purged,"
    sent = "update redrive.jobs set status = 'running', locked_by = %s, locked_at = now() - %s::interval where key = %s"
    with closing(Queue(db, **at_broker)) as queue, psycopg.connect(db, autocommit=True) as other:
        for kind, key, ago in (("mail", "there", "1 day"), ("report", "gone", "1 day"), ("report", "just now", "1 s")):
            queue.kinds.route(kind, "amqp")
            queue.enqueue(kind, key=key)
            conn.execute(sent, [BROKER, ago, key])
        [found] = [each for each in examine(queue, other) if "nothing of it is there" in each.text]
    assert found.text.startswith(lost.format("report"))
    env = variables(at_broker)
    assert redrive(db, *found.remedy.split()[1:], env=env).stdout.startswith("1 job at the broker found: 2\n1 sent")
    said = redrive(db, "requeue", "--at-broker", "--kind", "mail", env=env, code=1).stderr
    assert "5 messages of kind mail are at the broker: name those that are lost by their ids, or say --yes" in said
    assert answer(db, "requeue", "--at-broker", "--kind", "mail", "--yes", env=env)["ids"] == [1]


def test_what_is_routed_and_late_without_a_relay_says_so(db, conn):
    with closing(Queue(db)) as queue:
        queue.kinds.route("mail", "amqp", by="ada")
        queue.enqueue("mail")
        conn.execute("update redrive.jobs set run_at = now() - interval '1 hour'")
        seen = page(queue, "/")
        assert "the kind goes over the broker, and no relay is alive: start redrive relay" in seen
        assert "has limits" not in seen
        assert "broker_management_url is not set" in seen
        conn.execute(
            "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at)"
            " values ('relay:1:abcdef', 'h', 1, '1', '{}', 1, '1 hour', now())"
        )
        seen = page(queue, "/")
        assert "no relay is alive" not in seen
        assert "kind mail goes over the broker, and no live worker takes it from there" in seen
        assert "no worker is alive: start one" in seen
        assert "a relay, which hands jobs to the broker" in page(queue, "/workers")
    assert "over the broker" in redrive(db, "top", "--once").stdout
    assert "broker" in redrive(db, "kinds").stdout


def test_a_kind_is_routed_from_its_page(db, conn):
    with closing(Queue(db, broker_management_url=MUTE)) as queue:
        browser = client(desk(queue, local=True))
        assert "Over the broker" in browser.get("/kinds?kind=mail").text
        post(browser, "/kinds/route", kind="mail", route="amqp", reason="outgrown")
        assert [(row.kind, row.route) for row in queue.kinds.list()] == [("mail", "amqp")]
        assert "Back to Postgres" in browser.get("/kinds?kind=mail").text
        post(browser, "/kinds/route", kind="mail", route="postgres")
        assert queue.kinds.list() == []
        assert post(browser, "/kinds/route", kind="mail", route="nowhere").status_code == 400
        assert [act.action for act in queue.audit.list()] == ["route", "route"]


def test_where_it_does_not_answer_every_page_comes_and_says_so_without_the_password(db):
    with closing(Queue(db, broker_management_url=MUTE)) as queue:
        for path in ("/", "/kinds"):
            seen = page(queue, path)
            assert "http://127.0.0.1:1 can't be asked" in seen
            assert "hunter2" not in seen
        browser = client(desk(queue, local=True))
        scraped = browser.get("/metrics").text
        assert "redrive_broker_up 0.0" in scraped
        assert "redrive_broker_jobs" not in scraped
    shown = redrive(db, "top", "--once", env={"REDRIVE_BROKER_MANAGEMENT_URL": MUTE}).stdout
    assert "can't be asked" in shown
    assert "hunter2" not in shown


def test_who_brings_a_kind_back_is_told_what_is_left_at_the_broker_and_who_takes_it(db, at_broker):
    redrive(db, "route", "mail", "amqp")
    for _ in range(2):  # said again it still holds
        said = redrive(db, "route", "mail", "postgres", env=variables(at_broker)).stderr
        assert "keep workers with --broker until its queues are empty (5 jobs there now); none is alive: start" in said
    assert redrive(db, "route", "export", "postgres", env=variables(at_broker)).stderr == ""


def test_without_a_broker_nothing_is_said_of_one(db):
    with closing(Queue(db)) as queue:
        assert "broker" not in page(queue, "/").lower()
        assert "broker" not in page(queue, "/kinds").lower()
        with psycopg.connect(db, autocommit=True) as conn:
            assert not [each for each in examine(queue, conn) if each.check == "rabbitmq"]
    assert answer(db, "top")["broker"] is None


@pytest.mark.parametrize(
    ("seen", "level", "said"),
    [
        ({"ready": 1}, "bad", "1 job of kind mail waits at the broker, and no worker takes it"),
        ({"ready": 2, "routed": False}, "bad", "to which it is not routed, and no worker takes them"),
        ({"ready": 9000, "consumers": 2, "goes": 5.0}, "note", "and need 30 min"),
        ({"ready": 2, "consumers": 1, "goes": 9.0, "oldest": 900.0}, "bad", "the first for 15 min"),
        ({"trouble": "q is on 2 of 3 nodes"}, "bad", "kind mail: q is on 2 of 3 nodes"),
    ],
)
def test_what_is_wrong_there_is_judged(seen, level, said):
    [found] = ails(Broker(kinds=[Queued(**{"kind": "mail", "routed": True} | seen)]))
    assert found.level == level
    assert said in found.text


def test_what_is_on_its_way_is_not_wrong():
    busy = Queued(kind="mail", routed=True, ready=10, unacknowledged=5, consumers=2, comes=100.0, goes=100.0)
    assert ails(Broker(kinds=[busy, Queued(kind="new", routed=True)])) == []
    assert [each.text for each in ails(Broker(troubles=["node a is away"]))] == ["node a is away"]


def test_the_doctor_names_the_relay_where_what_is_routed_is_due_and_none_is_alive(db, conn):
    with closing(Queue(db)) as queue:
        queue.kinds.route("mail", "amqp", by="ada")
        queue.enqueue("mail")

        def bad() -> list[tuple[str, str, str]]:
            with psycopg.connect(db, autocommit=True) as other:
                return [(each.check, each.text, each.remedy) for each in examine(queue, other) if each.level == "bad"]

        said = "no relay is alive, and jobs that go over the broker are due: of kind mail"
        missed = "kind mail goes over the broker, and no live worker takes it from there: start redrive worker"
        relay, worker = bad()
        assert relay == ("rabbitmq", said, "redrive relay --broker-url URL")
        assert (worker[0], worker[1].startswith(missed), worker[2].endswith("--broker URL")) == ("rabbitmq", True, True)
        conn.execute(
            "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at)"
            " values ('a', 'h', 1, '1', '{mail}', 1, '1 hour', now())"
        )
        assert len(bad()) == 2, "that worker takes its jobs from the table"
        conn.execute("update redrive.workers set listener_pid = 0")
        assert [text for _, text, _ in bad()] == [said]
        conn.execute("update redrive.workers set kinds = '{export}'")
        [(check, text, remedy), *_] = bad()
        assert (check, text.startswith("no living worker knows kind mail: 1 due job")) == ("kinds", True)
        assert remedy.startswith(
            "workers with its handler (or aliases=[...] if it was renamed), and with --broker, for it"
        )
        conn.execute("update redrive.workers set kinds = '{}'")
        [(check, text, _)] = bad()
        assert (check, text.startswith(missed)) == ("rabbitmq", True)


def test_what_a_process_works_as_is_known_by_its_row(db, conn, vhost, wait_for):
    with closing(Queue(db, broker_url=vhost)) as queue:
        queue.handler("mail")(print)
        with Inside(queue.worker(broker=vhost)), Inside(queue.relay()), Inside(queue.worker(listen=False)):
            wait_for(lambda: conn.execute("select count(*) from redrive.workers").fetchone() == (3,))
            found = {row.works_as for row in run(conn, workers(queue.schema))}
    assert found == {"relay", "worker", "worker --broker"}


def test_a_worker_at_the_broker_is_not_said_to_be_deaf(db, conn, vhost, wait_for):
    with closing(Queue(db, broker_url=vhost)) as queue:
        queue.handler("mail")(print)
        with Inside(queue.worker(broker=vhost)):
            wait_for(lambda: conn.execute("select count(*) from redrive.workers").fetchone() == (1,))
            with psycopg.connect(db, autocommit=True) as other:
                assert [each for each in examine(queue, other) if each.check == "listening"] == []
