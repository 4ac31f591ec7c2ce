"""What operators set for kinds: a pause stops them, a limit holds for all workers, and the other kinds go on."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from engine import Inside, states
from redrive import InvalidOption, Queue, claims
from redrive.lanes import Lanes
from redrive.statements import named, run
from support import wait_for
from support_engine import WORKER, add, claim


def succeed(conn: psycopg.Connection, jobs: list[Any]) -> None:
    conn.execute("update redrive.jobs set status = 'succeeded' where id = any(%s)", [[job.id for job in jobs]])


@pytest.fixture
def queue(db):
    made = Queue(db)
    yield made
    made.close()


class TestPause:
    def test_no_job_of_a_paused_kind_is_claimed_or_seen_and_the_others_are(self, conn, queue):
        queue.kinds.pause("mail", by="ada", reason="the provider is down")
        add(conn, "mail", 3)
        add(conn, "export", 2)
        assert [job.kind for job in claim(conn, "mail", "export")] == ["export", "export"]
        lanes = Lanes(["mail"])
        assert not lanes.surveyed(run(conn, claims.survey("redrive", **lanes.look())), 0.0, 1.0).due
        assert queue.kinds.resume("mail")
        assert len(claim(conn, "mail")) == 3

    def test_a_pause_of_all_kinds_is_one_of_its_own(self, conn, queue):
        queue.kinds.pause(reason="the database moves")
        add(conn, "mail")
        assert claim(conn, "mail") == []
        assert not queue.kinds.resume("mail")
        assert queue.kinds.resume()
        assert len(claim(conn, "mail")) == 1

    def test_a_pause_with_an_end_is_over_by_itself(self, conn, queue):
        soon = datetime.now(UTC) + timedelta(hours=1)
        assert queue.kinds.pause("mail", until=soon).paused
        add(conn, "mail")
        assert claim(conn, "mail") == []
        conn.execute("update redrive.kinds set paused_until = now() - interval '1 s'")
        assert len(claim(conn, "mail")) == 1
        assert [row.paused for row in queue.kinds.list()] == [False]

    def test_a_paused_kind_holds_no_trials_either(self, conn, queue):
        add(conn, "mail", alone=True)
        queue.kinds.pause("mail")
        assert claim(conn, "mail", alone=True) == []
        queue.kinds.resume("mail")
        assert len(claim(conn, "mail", alone=True)) == 1

    def test_a_worker_stops_at_once_and_goes_on_at_once(self, db, conn):
        """It is told: the poll of a minute is not waited for."""
        queue = Queue(db, poll=60)
        queue.handler("mail")(lambda _payload: None)
        with Inside(queue) as inside:
            wait_for(lambda: inside.workers[0].listener.hears)
            queue.kinds.pause("mail")
            queue.enqueue("mail", {})
            with pytest.raises(AssertionError):
                wait_for(lambda: states(conn) == {"succeeded": 1}, 1)
            queue.kinds.resume("mail")
            wait_for(lambda: states(conn) == {"succeeded": 1}, 20)
        queue.close()


class TestConcurrency:
    def test_no_more_run_at_once_than_the_limit_says_and_what_ends_makes_room(self, conn, queue):
        queue.kinds.limit("export", running=3)
        add(conn, "export", 10)
        first = claim(conn, "export")
        assert len(first) == 3
        assert claim(conn, "export") == []
        succeed(conn, first[:2])
        assert len(claim(conn, "export")) == 2

    def test_each_lane_has_a_limit_of_its_own_over_all_its_priorities(self, conn, queue):
        queue.kinds.limit("export", lane_running=2)
        for lane in ("a", "b"):
            for priority in (3, 5):
                add(conn, "export", 4, lane=lane, priority=priority)
        taken = claim(conn, "export")
        assert sorted((job.lane, job.priority) for job in taken) == [("a", 3), ("a", 3), ("b", 3), ("b", 3)]
        add(conn, "export", 1, lane="c", priority=9)
        assert [job.lane for job in claim(conn, "export")] == ["c"]
        succeed(conn, [job for job in taken if job.lane == "a"][:1])
        assert [(job.lane, job.priority) for job in claim(conn, "export")] == [("a", 3)]

    def test_what_is_not_due_yet_takes_no_room_from_what_is_cl_08(self, conn, queue):
        """A limit is mutual exclusion and no order: one that waits out an hour, or its back-off, stalls nobody."""
        queue.kinds.limit("export", lane_running=1)
        later = datetime.now(UTC) + timedelta(hours=1)
        add(conn, "export", lane="k", priority=0, run_at=later)
        add(conn, "export", lane="k", priority=0, run_at=later, attempts=3)
        add(conn, "export", lane="k", priority=5)
        assert [job.priority for job in claim(conn, "export")] == [5]

    def test_priorities_that_share_a_lanes_room_never_exceed_it_together(self, conn, queue):
        queue.kinds.limit("export", lane_running=3)
        add(conn, "export", 2, lane="a", priority=3)
        add(conn, "export", 2, lane="a", priority=5)
        assert sorted(job.priority for job in claim(conn, "export")) == [3, 3, 5]

    def test_a_limit_of_the_kind_goes_over_that_of_its_lanes(self, conn, queue):
        queue.kinds.limit("export", running=3, lane_running=2)
        for lane in "abc":
            add(conn, "export", 5, lane=lane)
        lanes = [job.lane for job in claim(conn, "export")]
        assert len(lanes) == 3
        assert max(map(lanes.count, lanes)) == 2

    def test_workers_that_claim_at_the_same_instant_do_not_exceed_it_together(self, db, conn, queue):
        queue.kinds.limit("export", running=5)
        add(conn, "export", 200)
        together, most = threading.Barrier(4), []

        def work() -> None:
            with psycopg.connect(db, autocommit=True) as own:
                together.wait(10)
                for _ in range(25):
                    jobs = claim(own, "export", limit=4)
                    counted = own.execute("select count(*) from redrive.jobs where status = 'running'").fetchone()
                    most.append(counted[0])
                    succeed(own, jobs)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert 0 < max(most) <= 5
        assert states(conn)["succeeded"] > 50

    def test_what_runs_already_when_the_limit_is_set_is_counted(self, conn, queue):
        add(conn, "export", 6)
        assert len(claim(conn, "export", limit=2)) == 2
        assert queue.kinds.limit("export", running=3).running == 2
        assert len(claim(conn, "export")) == 1

    def test_a_limit_lowered_below_what_runs_lets_nothing_start_until_it_is_met(self, conn, queue):
        queue.kinds.limit("export", running=4)
        add(conn, "export", 10)
        running = claim(conn, "export")
        queue.kinds.limit("export", running=2)
        succeed(conn, running[:2])
        assert claim(conn, "export") == []
        succeed(conn, running[2:3])
        assert len(claim(conn, "export")) == 1

    def test_nothing_leaks_when_a_worker_dies_a_job_is_requeued_or_a_row_is_deleted(self, conn, queue):
        queue.kinds.limit("export", running=3)
        add(conn, "export", 9)
        first, second, third = claim(conn, "export")
        conn.execute("update redrive.jobs set status = 'pending', run_at = now() where id = %s", [first.id])
        conn.execute("delete from redrive.jobs where id = %s", [second.id])
        conn.execute("update redrive.jobs set status = 'dead' where id = %s", [third.id])
        assert len(claim(conn, "export")) == 3

    def test_a_worker_that_knows_nothing_of_the_limit_yet_takes_nothing_of_the_kind(self, conn, queue):
        lanes = Lanes(["export", "mail"])
        plan = lanes.plan(10, lambda _kind: 10, 1.0)
        add(conn, "export", 5)
        add(conn, "mail", 1)
        queue.kinds.limit("export", running=1)
        assert [job.kind for job in run(conn, claims.claim(WORKER, **plan.params()))] == ["mail"]

    def test_a_kind_that_a_rival_is_claiming_is_left_out_and_not_waited_for(self, db, conn, queue):
        queue.kinds.limit("export", running=1)
        add(conn, "export", 2)
        with psycopg.connect(db) as rival:
            assert run(rival, claims.lock_limits("redrive", ["export"])) == ["export"]
            assert claim(conn, "export") == []
        assert len(claim(conn, "export")) == 1

    def test_a_trial_counts_too(self, conn, queue):
        queue.kinds.limit("export", running=1)
        add(conn, "export", alone=True)
        add(conn, "export")
        [running] = claim(conn, "export")
        assert claim(conn, "export", alone=True) == []
        succeed(conn, [running])
        assert len(claim(conn, "export", alone=True)) == 1
        add(conn, "export")
        assert claim(conn, "export") == []

    def test_a_slot_that_is_freed_is_filled_at_once_although_nothing_is_claimed_ahead(self, db, conn):
        """A limit that never binds must not make a worker wait for its next look."""
        queue, ended = Queue(db, concurrency=2), []

        @queue.handler("export")
        async def export(_payload: Any) -> None:
            await asyncio.sleep(0.02)
            ended.append(time.monotonic())

        queue.kinds.limit("export", running=100)
        add(conn, "export", 60)
        with Inside(queue):
            wait_for(lambda: states(conn) == {"succeeded": 60}, 60)
        gaps = sorted(later - earlier for earlier, later in zip(ended[::2], ended[2::2], strict=False))
        assert gaps[len(gaps) // 4] < 0.07, "the pauses of a worker that falls asleep are 5, 20, 80 and 320 ms"
        queue.close()

    def test_a_kind_whose_row_a_rival_held_is_asked_for_again_soon(self, db, conn):
        queue = Queue(db, poll=60)
        queue.handler("export")(lambda _payload: None)
        queue.kinds.limit("export", running=1)
        add(conn, "export", 2)
        with psycopg.connect(db) as rival:
            run(rival, claims.lock_limits("redrive", ["export"]))
            with Inside(queue) as inside:
                wait_for(lambda: inside.workers[0].producer._step > 5)
                rival.rollback()
                wait_for(lambda: states(conn) == {"succeeded": 2}, 20)
        queue.close()

    def test_two_workers_keep_it_and_finish_everything(self, db, conn):
        running, most, lock = 0, [0], threading.Lock()

        async def export(_payload: Any) -> None:
            nonlocal running
            with lock:
                running += 1
                most.append(running)
            await asyncio.sleep(0.01)
            with lock:
                running -= 1

        queues = [Queue(db, concurrency=10) for _ in range(2)]
        for queue in queues:
            queue.handler("export")(export)
        queues[0].kinds.limit("export", running=3)
        add(conn, "export", 40)
        with Inside(*queues):
            wait_for(lambda: states(conn) == {"succeeded": 40}, 60)
        assert max(most) == 3
        for queue in queues:
            queue.close()


class TestRate:
    def at(self, conn: psycopg.Connection, seconds: float) -> float:
        """Move the library's clock; gives what it says."""
        conn.execute("select set_config('redrive.clock_offset', %s, false)", [f"{seconds} s"])
        return conn.execute("select extract(epoch from redrive.clock())::float8").fetchone()[0]

    def test_as_many_start_as_the_rate_allows_and_a_burst_after_a_pause(self, conn, queue):
        """Generic cell rate algorithm: a bucket of burst tokens that fills at the rate."""
        queue.kinds.limit("mail", rate=10, burst=5)
        add(conn, "mail", 100)
        began = self.at(conn, 1)
        assert len(claim(conn, "mail")) == 5
        started = 5
        for tenth in range(1, 21):
            ended = self.at(conn, 1 + tenth / 10)
            started += len(claim(conn, "mail"))
        passed = 10 * (ended - began)  # the offset, and what the machine took
        assert 5 + passed / 2 <= started <= 5 + passed + 2
        self.at(conn, 3600)
        assert len(claim(conn, "mail")) == 5

    def test_each_lane_has_a_rate_of_its_own(self, conn, queue):
        queue.kinds.limit("mail", lane_rate=1, lane_burst=1)
        for lane in "abc":
            add(conn, "mail", 10, lane=lane)
        self.at(conn, 1)
        assert sorted(job.lane for job in claim(conn, "mail")) == ["a", "b", "c"]
        assert claim(conn, "mail") == []
        self.at(conn, 2.5)
        assert sorted(job.lane for job in claim(conn, "mail")) == ["a", "b", "c"]
        assert conn.execute("select count(*) from redrive.lane_rates").fetchone() == (3,)
        self.at(conn, 100)
        run(conn, named("prune_lane_rates", "redrive"))
        assert conn.execute("select count(*) from redrive.lane_rates").fetchone() == (0,)

    def test_a_rate_may_be_slower_than_one_a_second(self, conn, queue):
        queue.kinds.limit("report", rate=1 / 3600, burst=1)
        add(conn, "report", 5)
        self.at(conn, 0)
        assert len(claim(conn, "report")) == 1
        self.at(conn, 3500)
        assert claim(conn, "report") == []
        self.at(conn, 3700)
        assert len(claim(conn, "report")) == 1

    def test_a_worker_keeps_it_and_finishes_everything(self, db, conn):
        queue = Queue(db)
        queue.handler("mail")(lambda _payload: None)
        queue.kinds.limit("mail", rate=20, burst=1)
        add(conn, "mail", 15)
        with Inside(queue):
            wait_for(lambda: states(conn) == {"succeeded": 15}, 60)
        [(seconds,)] = conn.execute(
            "select extract(epoch from max(locked_at) - min(locked_at)) from redrive.jobs"
        ).fetchall()
        assert seconds >= 14 / 20 - 0.06
        queue.close()


class TestWhatIsSet:
    def test_limits_are_those_that_were_given_last_and_no_others(self, conn, queue):
        assert queue.kinds.limit("mail", rate=10, burst=20, lane_running=1).rate == 10
        row = queue.kinds.limit("mail", running=5)
        assert (row.running_most, row.rate, row.burst, row.lane_running_most) == (5, None, None, None)
        queue.kinds.limit("mail")
        assert queue.kinds.list() == []

    def test_pause_and_limits_leave_each_other_alone(self, queue):
        queue.kinds.pause("mail", by="ada", reason="why")
        queue.kinds.limit("mail", running=5)
        [row] = queue.kinds.list()
        assert (row.paused, row.paused_by, row.paused_reason, row.running_most) == (True, "ada", "why", 5)
        queue.kinds.resume("mail")
        assert queue.kinds.list()[0].running_most == 5

    def test_async_code_has_the_same(self, db):
        async def scenario() -> None:
            queue = Queue(db)
            assert (await queue.kinds.pause_async("mail")).paused
            assert (await queue.kinds.limit_async("mail", running=2)).running_most == 2
            assert [row.kind for row in await queue.kinds.list_async()] == ["mail"]
            assert await queue.kinds.resume_async("mail")
            queue.close()

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("limits", "said"),
        [
            ({"running": 0}, "running is 0: must be a whole number from 1; to stop a kind, pause it"),
            ({"running": 1.5}, "running is 1.5"),
            ({"rate": 0}, "rate is 0: must be a number of starts a second over 0"),
            ({"rate": float("nan")}, "rate is nan"),
            ({"lane_rate": "10"}, "lane_rate is '10'"),
            ({"burst": 3}, "burst is 3 without a rate: give both"),
            ({"rate": 1e-5, "burst": 5_000_000}, "burst is 5000000: must be at most what rate allows in a year"),
            ({"lane_burst": 3}, "lane_burst is 3 without a lane_rate: give both"),
        ],
    )
    def test_what_makes_no_sense_is_refused_before_anything_is_written(self, queue, limits, said):
        with pytest.raises(InvalidOption, match=f"^{said}"):
            queue.kinds.limit("mail", **limits)
        with pytest.raises(InvalidOption, match="each has limits of its own"):
            queue.kinds.limit("*", running=1)
        with pytest.raises(InvalidOption, match="give it a timezone"):
            queue.kinds.pause("mail", until=datetime(2030, 1, 1))  # noqa: DTZ001 - naive on purpose
        with pytest.raises(InvalidOption, match="that is over by the database's clock"):
            queue.kinds.pause("mail", until=datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidOption, match="must be a datetime"):
            queue.kinds.pause("mail", until=timedelta(hours=1))
        assert queue.kinds.list() == []

    @pytest.mark.parametrize("when", ["infinity", "-infinity"])
    @pytest.mark.parametrize("column", ["paused_until", "empty_at"])
    def test_times_that_nobody_can_reckon_with_are_refused(self, conn, column, when):
        """One such row would keep all kinds with limits from being claimed."""
        with pytest.raises(psycopg.errors.CheckViolation, match="kinds_times_are_finite"):
            conn.execute(
                f"insert into redrive.kinds (kind, rate, paused_at, {column}) values ('mail', 5, now(), %s)", [when]
            )

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ("('mail', null, 1e7)", "kinds_rate_is_over_0"),
            ("('mail', null, 'NaN')", "kinds_rate_is_over_0"),
            ("('mail', 0, null)", "kinds_running_most_is_at_least_1"),
            ("('*', 1, null)", "kinds_all_can_be_paused_but_not_limited"),
            ("('', 1, null)", "kinds_kind_is_1_to_1000_bytes"),
            ("('mail', null, -1)", "kinds_rate_is_over_0"),
        ],
    )
    def test_rows_made_by_hand_are_held_to_the_same(self, conn, row, said):
        with pytest.raises(psycopg.errors.CheckViolation, match=said):
            conn.execute(f"insert into redrive.kinds (kind, running_most, rate) values {row}")

    def test_a_row_made_by_hand_is_in_force(self, conn):
        conn.execute("insert into redrive.kinds (kind, running_most) values ('export', 2)")
        add(conn, "export", 5)
        assert len(claim(conn, "export")) == 2
