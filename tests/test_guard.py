"""While what they call is down jobs wait without spending attempts, probes ask, and afterwards the backlog goes out."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from benchmarks.outage import play
from engine import Inside, states
from redrive import Breaker, Discard, InvalidOption, Queue, Retry, Snooze, events
from redrive.failure import describe
from redrive.guard import Guard
from redrive.migrate import migrate
from redrive.outcome import Finished, Held, Retried
from redrive.service import Database
from support import database, wait_for

QUICK = Breaker(probe_every=0.3, probe_longest=0.5)


class Service:
    """What the jobs call: up or down, and it notes who called."""

    def __init__(self) -> None:
        self.down = True
        self.calls: list[tuple[float, Any]] = []
        self._lock = threading.Lock()

    def call(self, payload: Any) -> None:
        with self._lock:
            self.calls.append((time.monotonic(), payload))
        if self.down:
            threading.Event().wait(0.01)  # as long as it takes to hear nothing
            raise ConnectionRefusedError("nobody listens there")


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def make(db):
    queues = []

    def make(handle: Any, **how: Any) -> Queue:
        queue = Queue(db, poll=1)
        queue.handler("mail", **{"breaker": QUICK, **how})(handle)
        queues.append(queue)
        return queue

    yield make
    for queue in queues:
        queue.close()


def state(queue: Queue) -> dict[str, str]:
    return {breaker.name: breaker.state for breaker in queue.breakers.list(closed=True)}


def attempts(conn: psycopg.Connection) -> list[int]:
    return [row[0] for row in conn.execute("select attempts from redrive.jobs order by id")]


def lanes(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("select lane, count(*)::int from redrive.jobs group by lane").fetchall())


def outcomes(conn: psycopg.Connection) -> set[str]:
    return {row[0] for row in conn.execute("select distinct outcome from redrive.failures")}


def log_in(services: dict[str, Service]) -> Any:
    """Make a handler that calls the service which its payload names."""
    return lambda payload: services[payload["host"]].call(payload)


def test_an_outage_costs_the_jobs_behind_it_no_attempt_and_all_succeed_afterwards(conn, make, service):
    queue = make(service.call, max_attempts=2)
    queue.enqueue_many("mail", [{}] * 40)
    heard: list[Any] = []
    end = events.subscribe(heard.append, events.BreakerOpened, events.BreakerClosing, events.JobHeld)
    with Inside(queue, concurrency=4):
        wait_for(lambda: state(queue) == {"mail": "open"}, 20)
        wait_for(lambda: "running" not in states(conn), 20)
        before = len(service.calls)
        wait_for(lambda: len(service.calls) >= before + 4, 20)  # probes, one at a time
        times = [when for when, _ in service.calls[before:]]
        assert min(later - earlier for earlier, later in pairwise(times)) > 0.2
        assert states(conn) in ({"pending": 40}, {"pending": 39, "running": 1})
        assert max(attempts(conn)) <= 1
        service.down = False
        wait_for(lambda: state(queue) == {"mail": "closing"}, 20)
        wait_for(lambda: states(conn).get("succeeded", 0) > 3, 20)
        queue.breakers.close("mail", at_once=True)
        wait_for(lambda: states(conn) == {"succeeded": 40}, 20)
    end()
    [opened] = [one for one in heard if isinstance(one, events.BreakerOpened)]
    assert (opened.kind, opened.target, opened.error) == ("mail", "", "ConnectionRefusedError: nobody listens there")
    assert outcomes(conn) == {"retried", "held"}
    assert sum(isinstance(one, events.JobHeld) for one in heard) > 3


def test_only_the_target_that_is_down_is_held(conn, make):
    services = {"up": Service(), "down": Service()}
    services["up"].down = False
    queue = make(log_in(services), target=lambda payload: payload["host"])
    for host in ("down", "up") * 10:
        queue.enqueue("mail", {"host": host})
    with Inside(queue, concurrency=2):
        wait_for(lambda: state(queue) == {"mail down": "open"}, 20)
        wait_for(lambda: states(conn).get("succeeded") == 10, 20)
        queue.enqueue("mail", {"host": "up"})
        wait_for(lambda: states(conn).get("succeeded") == 11, 5)  # at once, though its kind is counted now
        assert max(attempts(conn)) <= 1  # the others were held, or asked as probes


def test_jobs_enqueued_by_sql_have_their_target_found_and_are_put_into_its_lane(conn, make):
    services = {"down": Service()}
    queue = make(log_in(services), target=lambda payload: payload["host"])
    conn.execute(
        """insert into redrive.jobs (kind, payload) select 'mail', '{"host": "down"}' from generate_series(1, 30)"""
    )
    with Inside(queue, concurrency=2):
        wait_for(lambda: state(queue) == {"mail down": "open"}, 20)
        wait_for(lambda: lanes(conn) == {"down": 30}, 20)
        calls = len(services["down"].calls)
        assert calls < 10
        assert max(attempts(conn)) <= 1
        services["down"].down = False
        wait_for(lambda: states(conn).get("succeeded", 0) >= 1, 20)


def test_what_a_target_asks_for_holds_for_all_its_jobs(conn, make):
    """Retry-After of an answer, or of the handler's own words (CL-08 in spirit)."""

    class TooMany(Exception):
        def __init__(self, wait: str) -> None:
            self.response = SimpleNamespace(status_code=429, headers={"Retry-After": wait})

    def handle(payload: Any) -> None:
        if payload["host"] == "words":
            raise Retry("quota", after=500, whole_target=True)
        raise TooMany("300")

    queue = make(handle, target=lambda payload: payload["host"])
    for host in ("answer", "words") * 3:
        queue.enqueue("mail", {"host": host})
    with Inside(queue, concurrency=1):
        wait_for(lambda: state(queue) == {"mail answer": "open", "mail words": "open"}, 20)
        wait_for(lambda: "running" not in states(conn), 20)
    holds = {one.target: (one.probe_at - one.opened_at).total_seconds() for one in queue.breakers.list()}
    assert holds == {"answer": pytest.approx(300, abs=10), "words": pytest.approx(500, abs=10)}
    assert attempts(conn) == [0] * 6


def test_what_one_of_many_asks_for_without_a_target_holds_only_its_own_job(conn, make):
    def handle(payload: Any) -> None:
        if payload["number"] == 0:
            raise Retry("quota", after=500, whole_target=True)

    queue = make(handle)
    for number in range(4):
        queue.enqueue("mail", {"number": number})
    with Inside(queue):
        wait_for(lambda: states(conn) == {"pending": 1, "succeeded": 3}, 20)
    assert state(queue) == {}


def test_one_job_alone_is_no_outage_and_dies_as_ever(conn, make, service):
    queue = make(service.call, max_attempts=4, backoff=lambda _attempt: 0)
    queue.enqueue("mail", {})
    with Inside(queue):
        wait_for(lambda: states(conn) == {"dead": 1}, 20)
    assert (state(queue), len(service.calls)) == ({}, 4)


def test_where_the_target_is_named_one_job_is_enough_and_it_does_not_die(conn, make, service):
    queue = make(service.call, max_attempts=3, backoff=lambda _attempt: 0, target=lambda _payload: "host")
    queue.enqueue("mail", {})
    with Inside(queue):
        wait_for(lambda: len(service.calls) >= 6, 20)
        assert states(conn).keys() <= {"pending", "running"}
        service.down = False
        wait_for(lambda: states(conn) == {"succeeded": 1}, 20)


@pytest.mark.parametrize("targeted", [True, False])
def test_what_each_worker_has_met_once_is_an_outage_for_all_of_them(conn, make, service, targeted):
    """Few calls and many workers: no worker alone sees enough, and the jobs would die one after the other."""
    target = {"target": lambda _payload: "host"} if targeted else {}
    queue = make(service.call, max_attempts=4, backoff=lambda _attempt: 3600, **target)

    def one_worker_meets_it(times: int) -> None:
        with Inside(queue):
            wait_for(lambda: len(service.calls) == times and "running" not in states(conn), 20)

    queue.enqueue("mail", {})
    for life in (1, 2):
        one_worker_meets_it(life)
        assert state(queue) == {}
        if targeted:
            conn.execute("update redrive.jobs set run_at = now()")
        else:
            queue.enqueue("mail", {})
    with Inside(queue):
        wait_for(lambda: state(queue) == {"mail host" if targeted else "mail": "open"}, 20)
    assert len(service.calls) == 3


def test_one_job_that_fails_at_every_worker_is_no_outage_where_no_target_is_named(conn, make, service):
    queue = make(service.call, max_attempts=4, backoff=lambda _attempt: 3600)
    queue.enqueue("mail", {})
    for life in range(1, 5):
        with Inside(queue):
            wait_for(lambda life=life: len(service.calls) == life and "running" not in states(conn), 20)
        conn.execute("update redrive.jobs set run_at = now() where status = 'pending'")
    assert (states(conn), state(queue)) == ({"dead": 1}, {})


def test_an_outage_without_an_end_ends_the_jobs_so_that_they_are_seen(conn, make, service):
    queue = make(service.call, max_attempts=2, backoff=lambda _attempt: 0, breaker=replace(QUICK, give_up=1.0))
    queue.enqueue_many("mail", [{}] * 4)
    with Inside(queue):
        wait_for(lambda: states(conn).get("dead", 0) >= 1, 20)
    assert state(queue) == {"mail": "open"}


@pytest.mark.parametrize(
    "error",
    [ValueError("a bug"), FileNotFoundError("no such template"), psycopg.OperationalError("connection lost")],
)
def test_errors_of_the_job_and_of_our_own_database_open_nothing(conn, make, error):
    def handle(_payload: Any) -> None:
        raise error

    queue = make(handle, max_attempts=1)
    queue.enqueue_many("mail", [{}] * 10)
    with Inside(queue):
        wait_for(lambda: states(conn) == {"dead": 10}, 20)
    assert state(queue) == {}


def test_a_few_failures_among_many_answers_open_nothing(conn, make):
    def handle(payload: Any) -> None:
        if payload["number"] % 4 == 0:
            raise TimeoutError("it took too long")

    queue = make(handle, max_attempts=1)
    for number in range(40):
        queue.enqueue("mail", {"number": number + 1})
    with Inside(queue, concurrency=1):
        wait_for(lambda: states(conn) == {"dead": 10, "succeeded": 30}, 20)
    assert state(queue) == {}


@pytest.mark.parametrize("how", ["for the handler", "for the worker"])
def test_it_can_be_switched_off(conn, make, service, how):
    queue = make(service.call, max_attempts=1, breaker=how != "for the handler")
    queue.enqueue_many("mail", [{}] * 10)
    with Inside(queue, breaker=how != "for the worker"):
        wait_for(lambda: states(conn) == {"dead": 10}, 20)
    assert state(queue) == {}


def test_what_somebody_has_opened_is_not_closed_by_an_answer(conn, make, service):
    service.down = False
    begun, go_on = threading.Event(), threading.Event()

    def handle(payload: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        service.call(payload)

    queue = make(handle)
    queue.enqueue("mail", {})
    with Inside(queue, concurrency=1) as inside:
        assert begun.wait(20)
        queue.breakers.open("mail", by="ada")
        queue.enqueue("mail", {})
        wait_for(lambda: ("mail", "") in inside.worker.guard._known, 20)
        go_on.set()
        wait_for(lambda: states(conn) == {"pending": 1, "succeeded": 1}, 20)
        assert state(queue) == {"mail": "open"}
        queue.breakers.close("mail", at_once=True)
        wait_for(lambda: states(conn) == {"succeeded": 2}, 20)


def test_another_worker_learns_of_it_at_once_and_calls_nobody(db, conn, make, service):
    first, second = make(service.call), make(service.call)
    with Inside(first, poll=60, kinds=("mail",)):
        first.enqueue_many("mail", [{}] * 5)
        wait_for(lambda: state(first) == {"mail": "open"}, 20)
    first.breakers.open("mail", by="a test")  # no probes
    calls = len(service.calls)
    with Inside(second, poll=60) as inside:
        second.enqueue_many("mail", [{}] * 20)
        wait_for(lambda: ("mail", "") in inside.worker.guard._known, 20)
        wait_for(lambda: inside.worker.slots.empty, 20)
        assert len(service.calls) == calls
        first.breakers.close("mail", at_once=True)
        wait_for(lambda: len(service.calls) > calls, 5)


def test_a_worker_that_runs_once_does_not_wait_for_the_end_of_an_outage(conn, make, service):
    queue = make(service.call)
    queue.enqueue_many("mail", [{}] * 10)
    queue.breakers.open("mail")
    queue.run(once=True)
    assert (states(conn), service.calls) == ({"pending": 10}, [])


def test_a_classifier_of_ones_own_comes_first(conn, make):
    def handle(payload: Any) -> None:
        raise ValueError(payload["says"])

    def outage(error: BaseException) -> bool | None:
        return {"quota": True, "bug": False}.get(str(error))

    queue = make(handle, max_attempts=5, breaker=replace(QUICK, outage=outage))
    for says in ("bug", "quota", "quota", "quota"):
        queue.enqueue("mail", {"says": says})
    with Inside(queue, concurrency=1):
        wait_for(lambda: state(queue) == {"mail": "open"}, 20)


def test_a_target_that_cannot_be_named_is_refused_before_anything_is_written(conn, make, service):
    queue = make(service.call, target=lambda payload: payload["host"])
    with pytest.raises(InvalidOption, match="target of kind 'mail' raised KeyError: 'host'"):
        queue.enqueue("mail", {"hots": "a"})
    assert states(conn) == {}
    with pytest.raises(InvalidOption, match=r"payloads\[1\]: target of kind 'mail' raised KeyError"):
        queue.enqueue_many("mail", [{"host": "a"}, {"hots": "a"}])
    queue.enqueue("mail", {"hots": "a"}, lane="b")
    assert lanes(conn) == {"b": 1}


def test_many_at_once_have_each_its_target(conn, make, service):
    queue = make(service.call, target=lambda payload: payload["host"])
    assert queue.enqueue_many("mail", [{"host": host} for host in "aab"]) == 3
    assert queue.enqueue_many("mail", [{"host": "c"}], key=lambda payload: payload["host"]) == 1
    assert queue.enqueue_many("mail", [{"host": "a"}] * 2, lane="mine") == 2
    assert lanes(conn) == {"a": 2, "b": 1, "c": 1, "mine": 2}


@pytest.mark.parametrize("ends", [KeyError("no such user"), Discard("unsubscribed"), Snooze(60)])
def test_a_probe_that_meets_no_outage_ends_it_however_its_job_ends(conn, make, service, ends):
    def handle(payload: Any) -> None:
        service.call(payload)
        raise ends

    queue = make(handle, backoff=lambda _attempt: 60)
    queue.enqueue_many("mail", [{}] * 8)
    with Inside(queue, concurrency=4):
        wait_for(lambda: state(queue) == {"mail": "open"}, 20)
        service.down = False
        wait_for(lambda: state(queue) == {"mail": "closing"}, 20)


def test_what_the_database_refuses_is_said_once_and_other_breakers_open(conn, make, service):
    conn.execute(
        """create function pg_temp.refuse() returns trigger language plpgsql as
        $$ begin raise insufficient_privilege using message = 'not for you'; end $$;
        create trigger refuse before insert on redrive.breakers for each row when (new.target = 'a')
        execute function pg_temp.refuse()"""
    )
    queue = make(service.call, target=lambda payload: payload["host"], max_attempts=4, backoff=lambda _attempt: 0)
    heard: list[Any] = []
    end = events.subscribe(heard.append, events.TickFailed)
    for host in "aab":
        queue.enqueue("mail", {"host": host})
    with Inside(queue, concurrency=1) as inside:
        wait_for(lambda: states(conn) == {"dead": 2, "pending": 1}, 20)
        assert "not for you" in inside.worker.guard.remark or state(queue) == {"mail b": "open"}
        wait_for(lambda: state(queue) == {"mail b": "open"}, 20)
    end()
    assert [(one.service, one.error) for one in heard] == [("breakers", heard[0].error)]
    assert "not for you" in heard[0].error


def test_a_text_that_the_database_has_no_letters_for_is_in_nobodys_way(server_url):
    with database(server_url, "template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'") as dsn:
        migrate(dsn)
        queue = Queue(dsn, poll=1)

        def handle(_payload: Any) -> None:
            raise ConnectionError("日本")

        targets = {"a": "a", "b": "日本"}
        how = {"max_attempts": 4, "backoff": lambda _attempt: 0, "breaker": QUICK}
        queue.handler("mail", target=lambda payload: targets[payload["host"]], **how)(handle)
        with psycopg.connect(dsn, autocommit=True) as conn, Inside(queue, concurrency=1):
            conn.execute(
                """insert into redrive.jobs (kind, payload) select 'mail', jsonb_build_object('host', h)
                from unnest('{b,b,a}'::text[]) h"""
            )
            wait_for(lambda: state(queue) == {"mail a": "open"}, 20)
            wait_for(lambda: states(conn) == {"dead": 2, "pending": 1}, 20)
            assert queue.breakers.list()[0].reason == r"ConnectionError: \u65e5\u672c"
            assert outcomes(conn) == {"retried", "held", "dead"}
            assert conn.execute("select count(*) from redrive.failures where error_type ~ 'Refused'").fetchone() == (0,)
        queue.close()


def guarded(scenario: Any) -> None:
    """Run a scenario with a guard that nothing but the test speaks to; its database agrees to all."""
    said: list[str] = []

    async def agree(statement: Any) -> list[Any]:
        said.append(str(statement.params.get("target")))
        return []

    async def run() -> None:
        queue = Queue("postgresql://nobody@localhost/nothing")
        queue.handler("mail", target=lambda payload: payload["host"])(lambda payload: None)
        guard = Guard(Database("w"), SimpleNamespace(schema="redrive", run=agree), queue.handlers)
        await scenario(guard, said)

    asyncio.run(run())


def failed(number: int, target: str) -> Finished:
    job = SimpleNamespace(id=number, kind="mail", lane=target, started=time.monotonic(), stop_reason="", lost=False)
    return Finished(job, Retried(replace(describe(ConnectionError("no")), outage=0.0), 1.0), 0.1)


def test_a_look_from_before_a_breaker_opened_does_not_make_its_worker_forget_it():
    async def scenario(guard: Guard, said: list[str]) -> None:
        put: list[Finished] = []
        guard.put = put.append
        before = time.monotonic()
        for number in range(3):
            guard.take(failed(number, "a"))
        await guard.tick()
        assert "a" in said
        assert guard.learn("", before) == {"mail"}
        guard.take(failed(4, "a"))
        assert isinstance(put[-1].outcome, Held)
        assert guard.learn("", time.monotonic()) == frozenset()

    guarded(scenario)


def test_what_handlers_threads_find_out_is_in_no_claims_way():
    """A claim whose answer is lost on the way leaves jobs that nobody runs."""

    async def scenario(guard: Guard, _said: list[str]) -> None:
        broken: list[BaseException] = []

        def look() -> None:
            try:
                while not done.is_set():
                    guard.admit([])
                    guard.learn("", 0.0)
            except RuntimeError as error:
                broken.append(error)

        done, looks = threading.Event(), threading.Thread(target=look)
        looks.start()
        for number in range(6_000):
            guard.take(failed(number, f"t{number // 3}"))
        done.set()
        looks.join()
        assert broken == []

    guarded(scenario)


def test_an_outage_played_in_moved_time_costs_no_job_and_ends_without_a_stampede(db):
    """What make outage does at length: RB-05 in spirit, and the bars of probes and of arrival afterwards."""
    story = {"rate": 5.0, "before": 30.0, "outage": 150.0, "after": 150.0}  # a probe may be a minute away
    run = asyncio.run(play(db, breaker=True, tell=lambda _share: None, **story))
    assert run["dead"] == 0
    assert 3 <= run["calls_during_outage"] <= 30
    assert run["probes_a_second"] < 1
    assert 5 < run["peak_rate_after"] <= 10
