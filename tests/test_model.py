"""The state machine, beside a model of it in plain Python: whatever is done in whatever order, the rows are the same.

Simulated workers say the engine's own statements; a stranger says the tutorial's. Time moves by the library's clock.
`make model` runs thousands of examples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import dict_row

from model import COLUMNS, EDGES, MAX_CRASHES, SECOND, Beat, Lease, Model, Row, Said
from redrive import claims, once, store
from redrive.ended import Ended, requeue
from redrive.failure import describe
from redrive.job import FINISHED, STATES, Holder
from redrive.outcome import Crashed, Died, Failed, Finished, HandedBack, Held, Retried, Snoozed, Succeeded, parameters
from redrive.reaper import OWN_NAME
from redrive.rows import insert_many
from redrive.statements import Statement, as_array, named, numbered, run
from support_engine import claim_of, claimed

KINDS = ("mail", "pdf")
LANES = [(kind, priority, lane) for priority in (1, 5) for kind in KINDS for lane in ("", "tenant")]
WORKERS = ("here:1:aaaaaa", "here:2:bbbbbb", "there:1:cccccc")
STRANGER = "node-7"
LEASE = 900
FOREIGN_AGE = 6000
DAY = 86_400
SLACK = 50.0
"""Seconds of real time that an example may take: less than half of the smallest step of the clock here."""
WAITS = (100, 800, 1000, 5900, 7000, DAY + 500, 8 * DAY)
KEEP = {"succeeded": 7 * DAY, "failed": 30 * DAY, "dead": 365 * DAY}
FAILURE = describe(ValueError("it failed"))
OUTCOMES = {
    "succeeded": lambda delay: Succeeded('"done"'),
    "retried": lambda delay: Retried(FAILURE, delay),
    "held": lambda delay: Held(FAILURE, delay),
    "snoozed": Snoozed,
    "failed": lambda delay: Failed(FAILURE),
    "died": lambda delay: Died(FAILURE),
    "crashed": lambda delay: Crashed(FAILURE, delay),
    "handed_back": lambda delay: HandedBack(),
}
TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:?\d\d)?")

# as the article has them, but for the clock
TUTORIAL = {
    "claim": """
        WITH claimed AS (
          SELECT id FROM redrive.jobs WHERE status = 'pending' AND run_at <= redrive.clock()
          ORDER BY run_at FOR UPDATE SKIP LOCKED LIMIT 1
        )
        UPDATE redrive.jobs j SET status = 'running', attempts = j.attempts + 1, locked_at = redrive.clock(),
            locked_by = %(worker)s, updated_at = redrive.clock()
        FROM claimed WHERE j.id = claimed.id RETURNING j.id""",
    "succeeded": "UPDATE redrive.jobs SET status='succeeded', updated_at=redrive.clock() WHERE id=%(id)s",
    "dead": "UPDATE redrive.jobs SET status='dead', last_error='SMTPError', updated_at=redrive.clock() WHERE id=%(id)s",
    "pending": """
        UPDATE redrive.jobs SET status='pending', last_error='SMTPError',
            run_at=redrive.clock() + ('100' || ' seconds')::interval, updated_at=redrive.clock() WHERE id=%(id)s""",
    "reap": r"""
        UPDATE redrive.jobs
        SET status = 'pending', last_error = COALESCE(last_error, '') || E'\n[reaper] reclaimed stuck job',
            updated_at = redrive.clock()
        WHERE status = 'running' AND locked_at < redrive.clock() - INTERVAL '10 minutes'""",
    "requeue": """
        UPDATE redrive.jobs SET status = 'pending', attempts = 0, run_at = redrive.clock(), last_error = NULL,
            updated_at = redrive.clock() WHERE status = 'dead' AND kind = %(kind)s""",
    "delete": """
        DELETE FROM redrive.jobs WHERE status = 'succeeded' AND updated_at < redrive.clock() - INTERVAL '7 days'
        RETURNING id""",
}

delays = st.sampled_from((0, 100, 1000))
workers = st.sampled_from((*WORKERS[:1] * 3, *WORKERS))  # stale leases of one worker are the likelier
kinds = st.sampled_from(KINDS)
some_keys = st.sampled_from((None, None, "a", "b"))
picks = st.integers(0, 5)


class JobsTable(RuleBasedStateMachine):
    """The operations, each said to the database and to the model."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.conn = conn
        conn.execute("truncate redrive.jobs, redrive.failures, redrive.workers, redrive.jobs_archive restart identity")
        run(conn, named("set_clock", "redrive", moved="0"))
        [(self.began,)] = conn.execute("select now()").fetchall()
        self.model = Model()
        self.moved = self.ops = 0
        self.leases: list[Lease] = []
        self.taken_by_strangers: list[int] = []
        self.before: dict[int, str] = {}
        self.strange: set[int] = set()
        """Jobs that a stranger wrote since they were last sent back: for them nothing adds up but the model."""
        self.claims: Counter[int] = Counter()
        self.counted_from: Counter[int] = Counter()
        self.given_back: Counter[int] = Counter()

    # -- how things are said

    def say(self, statement: Statement[Any]) -> tuple[int, list[Any]]:
        """Run it; gives the model's time of it, and the answer."""
        self.ops += 1
        answer = run(self.conn, statement)
        self._only_legal_edges(EDGES)
        return self.now, answer

    def ask(self, name: str, /, **params: Any) -> tuple[int, list[Any]]:
        return self.say(named(name, "redrive", **params))

    def stranger(self, name: str, /, **params: Any) -> tuple[int, list[Any]]:
        self.ops += 1
        cursor = self.conn.execute(TUTORIAL[name], params)
        answer = cursor.fetchall() if cursor.description else []
        self._only_legal_edges({(was, now) for was in STATES for now in STATES})
        return self.now, answer

    @property
    def now(self) -> int:
        """The library's clock."""
        return self.moved * SECOND + self.ops

    def lease(self, pick: int) -> Lease:
        return self.leases[-1 - pick % len(self.leases)]

    # -- time

    @rule(seconds=st.sampled_from(WAITS))
    def time_passes(self, seconds):
        self.moved += seconds
        run(self.conn, named("set_clock", "redrive", moved=f"{self.moved} seconds"))

    # -- producers

    @rule(
        kind=kinds,
        key=some_keys,
        delay=delays,
        expires_in=st.sampled_from((None, None, 500, 2000)),
        max_attempts=st.sampled_from((1, 2, 5)),
        priority=st.sampled_from((1, 5)),
        lane=st.sampled_from(("", "tenant")),
    )
    def enqueue(self, kind, key, delay, expires_in, **wishes):
        how = store.options(delay=delay, expires_in=expires_in, **wishes)
        now, [row] = self.say(store.insert("redrive", kind, {"n": 1}, key, how))
        expires_at = None if expires_in is None else now + expires_in * SECOND
        self._inserted(
            row.id, key, created=row.created, kind=kind, run_at=now + delay * SECOND, expires_at=expires_at, **wishes
        )

    @initialize(keys=st.lists(some_keys, min_size=2, max_size=4))
    def there_is_work(self, keys):
        for worker in WORKERS:
            self.beat(worker)
        self._enqueue_many("mail", keys)

    @rule(
        kind=kinds,
        keys=st.lists(some_keys, min_size=1, max_size=3),
        how=st.sampled_from(("many", "function", "insert")),
    )
    def enqueue_otherwise(self, kind, keys, how):
        if how == "many":
            self._enqueue_many(kind, keys)
        elif how == "function":
            self._enqueue_in_sql(kind, keys[0])
        else:
            self._insert_by_hand(kind, keys[0])

    def _enqueue_many(self, kind: str, keys: list[str | None]) -> None:
        free = [
            key for n, key in enumerate(keys) if key is None or (key not in keys[:n] and not self.model.live_key(key))
        ]
        now, rows = self.say(insert_many("redrive", kind, [("{}", key) for key in keys], store.options()))
        assert [row.key for row in rows] == sorted(free, key=lambda key: (key is None, key))  # the order of writing
        for row in rows:
            self._inserted(row.id, row.key, created=True, kind=kind, run_at=now)

    def _enqueue_in_sql(self, kind: str, key: str | None) -> None:
        self.ops += 1
        expected = self.model.live_key(key)
        [(job,)] = self.conn.execute("select redrive.enqueue(%s, key => %s)", [kind, key]).fetchall()
        self._only_legal_edges(EDGES)
        self._inserted(job, key, created=expected is None, kind=kind, run_at=self.now)

    def _insert_by_hand(self, kind: str, key: str | None) -> None:
        self.ops += 1
        taken = self.model.live_key(key)
        with self._clash(expected=taken is not None):
            [(job,)] = self.conn.execute(
                "insert into redrive.jobs (kind, key) values (%s, %s) returning id", [kind, key]
            )
        self._only_legal_edges(EDGES)
        if taken is None:
            self._inserted(job, key, created=True, kind=kind, run_at=self.ops)

    @rule(
        kind=kinds,
        key=st.sampled_from(("a", "b")),
        conflict=st.sampled_from(once.CONFLICTS),
        max_attempts=st.sampled_from((1, 5)),
    )
    def enqueue_while_pending(self, kind, key, conflict, max_attempts):
        """A job of the key that runs gives the key up; one that waits stays, or becomes this one."""
        delay = {"delay": 100} if conflict == "debounce" else {}
        meaning = once.once(key, {"unique": "while pending", "on_conflict": conflict, **delay})
        how = store.options(max_attempts=max_attempts, **delay)
        live = self.model.live_key(key)
        now, [row] = self.say(once.insert("redrive", kind, {}, how, key=key, once=meaning))
        columns = {"kind": kind, "max_attempts": max_attempts}
        due = now + delay.get("delay", 0) * SECOND
        if live is None or live.status == "running":
            if live is not None:
                self.model.supersede(now, live)
            self._inserted(row.id, key, created=row.created, run_at=due, **columns)
            return
        assert (row.id, row.created, row.replaced) == (live.id, False, conflict != "keep")
        if row.replaced:
            self.model.replace(now, live, run_at=due if meaning.retimed else live.run_at, **columns)
            self.counted_from[live.id], self.given_back[live.id] = self.claims[live.id], 0

    def _inserted(self, job: int, key: str | None, *, created: bool, **columns: Any) -> None:
        live = self.model.live_key(key)
        assert created == (live is None)
        if live is not None:
            assert job == live.id
            return
        assert job not in self.model.rows
        # created_at and updated_at are the column's default: the real clock
        self.model.rows[job] = Row(id=job, key=key, created_at=self.ops, updated_at=self.ops, **columns)

    # -- workers

    @rule(worker=workers, quota=st.integers(1, 3), limit=st.integers(1, 4))
    def claim(self, worker, quota, limit):
        now, jobs = self.say(claim_of(Holder(worker, "redrive"), LANES, quota, limit))
        self._claimed(now, jobs, self.model.claimable(now, LANES, quota, limit), worker)

    @rule(worker=workers)
    def claim_alone(self, worker):
        expected = self.model.due(self.now + 1, lambda row: row.alone)[:1]
        reclaims = [
            sum(each.job_id == row.id and each.error_type == "WorkerLost" for each in self.model.failures)
            for row in expected
        ]
        now, jobs = self.say(claims.claim_alone(Holder(worker, "redrive"), kinds=list(KINDS), locked=[]))
        assert [job.reclaims for job in jobs] == reclaims
        self._claimed(now, jobs, expected, worker)

    def _claimed(self, now: int, jobs: list[Any], expected: list[Row], worker: str) -> None:
        assert sorted(job.id for job in jobs) == sorted(row.id for row in expected)
        for job in sorted(jobs, key=lambda job: job.id):
            row = self.model.rows[job.id]
            self.model.claim(now, row, worker)
            assert (job.attempt, job.claim, job.crashes) == (row.attempts, row.claims, row.crashes)
            self.leases.append(Lease(job.id, job.claim, worker))
            self.claims[job.id] += 1

    @rule(worker=workers, name=st.sampled_from(sorted(OUTCOMES)), delay=delays, trial=st.booleans())
    def a_try(self, worker, name, delay, trial):
        """Claimed and judged at once: what takes several tries to happen, happens."""
        before = len(self.leases)
        self.claim_alone(worker) if trial else self.claim(worker, 1, 1)
        if len(self.leases) > before:
            self.outcomes([0], [name], delay, None)

    @rule(worker=workers, name=st.sampled_from(sorted(OUTCOMES)), conflict=st.sampled_from(once.CONFLICTS))
    def overtaken(self, worker, name, conflict):
        """Claimed, and another with its key comes while it runs; then it ends in some way, or its worker does."""
        self.claim(worker, 3, 4)
        held = [lease for lease in self.leases if (row := self.model.holds(lease)) is not None and row.key is not None]
        if not held:
            return
        self.enqueue_while_pending("mail", self.model.rows[held[-1].job].key, conflict, 5)
        if name == "crashed":
            self.reap(next(each for each in WORKERS if each != held[-1].worker), 1000, alive=True, certain=True)
        else:
            self.outcomes([len(self.leases) - 1 - self.leases.index(held[-1])], [name], 0, None)

    @rule(worker=workers, trial=st.booleans())
    def a_worker_dies(self, worker, trial):
        """Claimed, and never heard of again."""
        self.beat(worker)
        self.claim_alone(worker) if trial else self.claim(worker, 1, 1)
        self.reap(next(each for each in WORKERS if each != worker), 1000, alive=True, certain=True)

    @precondition(lambda self: self.leases)
    @rule(
        chosen=st.lists(picks, min_size=1, max_size=3),
        names=st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=3, max_size=3),
        delay=delays,
        mixed_up=st.sampled_from((None, None, None, *WORKERS)),
    )
    def outcomes(self, chosen, names, delay, mixed_up):
        """What workers say of jobs that they claimed, however long ago; *mixed_up* says it in their place."""
        leases = list(dict.fromkeys(map(self.lease, chosen)))
        worker = mixed_up or leases[0].worker
        batch = [
            Finished(claimed(id=lease.job, claims=lease.claim), OUTCOMES[name](float(delay)), 0.5)
            for lease, name in sorted(zip(leases, names, strict=False), key=lambda each: each[0].job)
        ]
        now, rows = self.ask("finish_jobs", worker=worker, max_crashes=MAX_CRASHES, **parameters(batch))
        verdicts = {}
        for one in batch:
            name, failure = one.outcome.name, getattr(one.outcome, "failure", None)
            said = Said(
                Lease(one.job.id, one.job.claim, worker),
                name,
                round(getattr(one.outcome, "delay", 0.0) * SECOND),
                failure and failure.error_type,
                failure and failure.last_error,
                "done" if name == "succeeded" else None,
            )
            if (verdict := self.model.finish(now, said)) is not None:
                verdicts[one.job.id] = verdict
                self.given_back[one.job.id] += name in ("snoozed", "held", "handed_back", "crashed")
        assert {row.id: row.status for row in rows} == verdicts

    @precondition(lambda self: self.leases)
    @rule(chosen=st.lists(picks, min_size=1, max_size=3), mixed_up=st.sampled_from((None, None, None, *WORKERS)))
    def plain_successes(self, chosen, mixed_up):
        newest = {
            lease.job: lease for lease in map(self.lease, chosen)
        }  # a job is once in a batch, as the writer has it
        leases = [newest[job] for job in sorted(newest)]
        worker = mixed_up or leases[0].worker
        ids, claims = as_array([lease.job for lease in leases]), as_array([lease.claim for lease in leases])
        now, found = self.say(numbered("succeed_jobs", "redrive", ids=ids, claims=claims, worker=worker))
        said = [Lease(lease.job, lease.claim, worker) for lease in leases]
        assert sorted(found) == [lease.job for lease in said if self.model.succeed(now, lease)]

    @precondition(lambda self: self.leases)
    @rule(pick=picks, word=st.sampled_from(("complete", "complete and roll back", "acquit", "progress", "look")))
    def words_about_one(self, pick, word):
        lease = self.lease(pick)
        about = {"id": lease.job, "claim": lease.claim, "worker": lease.worker}
        many = {"ids": [lease.job], "claims": [lease.claim], "worker": lease.worker}
        row = self.model.holds(lease)
        if word == "complete":
            now, rows = self.ask("complete_job", **about, result='"done"', followers=None)
            assert bool(rows) == self.model.succeed(now, lease, "done")
        elif word == "complete and roll back":
            with self.conn.transaction(force_rollback=True):
                run(self.conn, named("complete_job", "redrive", **about, result=None, followers=None))
        elif word == "acquit":
            _, rows = self.ask("acquit_job", **about)
            assert bool(rows) == (row is not None)
            if row is not None:
                row.alone = False
        elif word == "progress":
            self.ask("write_progress", **many, values=['{"done": 3}'])
            if row is not None:
                row.progress = {"done": 3}
        else:
            _, rows = self.ask("cancel_requests", **many)
            expected = (
                [(False, True)] if row is None else [(True, False)] if row.cancel_requested_at is not None else []
            )
            assert [(each.cancelled, each.lost) for each in rows] == expected

    @rule(worker=workers, knows=st.booleans())
    def hand_back_mislaid(self, worker, knows):
        known = {lease.job for lease in self.leases if lease.worker == worker} if knows else set()
        now, rows = self.ask("hand_back_mislaid", worker=worker, known=list(known))
        mislaid = self.model.hand_back_mislaid(now, worker, known)
        assert sorted(row.id for row in rows) == sorted(mislaid)
        self.given_back.update(mislaid)

    def renew(self, worker: str) -> None:
        ids = [lease.job for lease in self.leases if lease.worker == worker]
        now, _ = self.ask("renew_leases", ids=ids, worker=worker)
        self.model.renew(now, worker, ids)

    # -- upkeep

    @rule(worker=workers, word=st.sampled_from(("beat", "renew", "leave", "bury", "prune history")))
    def upkeep(self, worker, word):
        getattr(self, word.replace(" ", "_").replace("prune", "_prune"))(worker)

    def beat(self, worker: str) -> None:
        about = {
            "host": "here",
            "pid": 1,
            "version": "0",
            "app_version": None,
            "clock_skew": None,
            "kinds": list(KINDS),
            "concurrency": 3,
            "in_flight": 0,
        }
        now, _ = self.ask("beat", name=worker, lease=float(LEASE), listener_pid=None, problem=None, **about)
        self.model.workers[worker] = Beat(now, LEASE * SECOND)

    def leave(self, worker: str) -> None:
        self.ask("leave", name=worker)
        self.model.workers.pop(worker, None)

    def bury(self, _worker: str) -> None:
        _, [seen] = self.ask("survey_held", own_name=OWN_NAME)
        now, rows = self.ask("bury_hopeless", kinds=list(KINDS))
        assert sorted(row.id for row in rows) == sorted(self.model.bury(now))
        assert seen.hopeless == bool(rows)

    def _prune_history(self, _worker: str) -> None:
        now, _ = self.ask("prune_failures", window=1000, failures=float(90 * DAY))
        self.model.prune_failures(now, 90 * DAY * SECOND)
        now, _ = self.ask("prune_workers")
        self.model.prune_workers(now)

    @rule(
        judge=workers, silence=st.sampled_from((0, 500, 1000, 1000, 6100)), alive=st.booleans(), certain=st.booleans()
    )
    def reap(self, judge, silence, alive, certain):
        """After a *silence* of all the others, by a worker that may have been silent itself."""
        if silence:
            self.time_passes(silence)
        if alive:
            self.beat(judge)
        _, [seen] = self.ask("survey_held", own_name=OWN_NAME)
        assert set(seen.ownerless) == self.model.ownerless()
        orphaned = set(seen.ownerless) if certain else set()
        params = {"orphaned": sorted(orphaned), "lease": float(LEASE), "foreign_age": float(FOREIGN_AGE)}
        params["kinds"] = list(KINDS)
        now, reaped = self.ask("reap_jobs", own_name=OWN_NAME, judge=judge, max_crashes=MAX_CRASHES, **params)
        expected = self.model.reap(now, judge, orphaned, LEASE * SECOND, FOREIGN_AGE * SECOND)
        assert {row.id: row.status for row in reaped} == expected
        assert seen.held or not reaped  # else the reaper would not have asked
        self.given_back.update(list(expected))

    @rule(archive=st.booleans(), meanwhile=st.booleans())
    def prune(self, archive, meanwhile):
        shortest = float(min(KEEP.values()))
        keep = {state: float(seconds) for state, seconds in KEEP.items()}
        now, [seen] = self.ask("scan_finished", after=-(2**63), window=1000, shortest=shortest, **keep)
        expired = self.model.expired(now, {state: seconds * SECOND for state, seconds in KEEP.items()})
        assert seen.expired == expired
        if meanwhile and expired and self.model.rows[expired[0]].status != "succeeded":
            self._requeue(Ended(ids=expired[:1], statuses=("dead", "failed")), lambda row: row.id == expired[0])
            expired = expired[1:]
        _, gone = self.ask("archive_finished" if archive else "delete_finished", ids=seen.expired, shortest=shortest)
        assert sorted(row.id for row in gone) == expired
        for job in expired:
            del self.model.rows[job]
        self.model.archived |= set(expired) if archive else set()

    # -- operators

    @rule(kind=kinds, key=st.sampled_from((None, None, "a")), pick=st.none() | st.integers(1, 9))
    def cancel(self, kind, key, pick):
        chosen = {"kind": kind, "key": key, "ids": None if pick is None else [pick]}
        now, rows = self.say(store.cancel("redrive", reason="not wanted", **chosen))

        def meant(row: Row) -> bool:
            return row.kind == kind and key in (None, row.key) and pick in (None, row.id)

        assert {row.id: row.was for row in rows} == self.model.cancel(now, meant, "cancelled: not wanted")

    @rule(kind=st.none() | kinds, statuses=st.sampled_from((("dead",), ("failed",), ("dead", "failed"))))
    def requeue(self, kind, statuses):
        def meant(row: Row) -> bool:
            return kind in (None, row.kind) and (row.status in statuses or ("dead" in statuses and row.hopeless))

        self._requeue(Ended(kind=kind, statuses=statuses), meant)

    @precondition(lambda self: self.model.rows)
    @rule(pick=picks, send=st.booleans())
    def edit(self, pick, send):
        rows = sorted(self.model.rows.values(), key=lambda row: (row.status not in ("dead", "failed"), row.id))
        row = rows[pick % len(rows)]  # one that has ended so, if there is any
        now, edited = self.ask("edit_payload", id=row.id, payload="{}", send=send, who="ada", why="")
        assert bool(edited) == (row.status in ("dead", "failed"))
        if edited:
            self.model.edit(now, row, send=send)
        if edited and send:
            self.counted_from[row.id], self.given_back[row.id] = self.claims[row.id], 0
            self.strange.discard(row.id)

    def _requeue(self, which: Ended, meant: Callable[[Row], bool]) -> None:
        now, [batch] = self.say(requeue("redrive", which))
        sent = self.model.requeue(now, meant)
        assert batch.ids == sent
        for job in sent:
            self.counted_from[job], self.given_back[job] = self.claims[job], 0
        self.strange -= set(sent)

    # -- strangers

    @rule(
        kind=kinds,
        pick=picks,
        word=st.sampled_from(("claim", "succeeded", "dead", "pending", "reap", "requeue", "delete")),
    )
    def tutorial(self, kind, pick, word):
        if word == "claim":
            self._stranger_claims()
        elif word == "reap":
            self._stranger_reaps()
        elif word == "requeue":
            self._stranger_requeues(kind)
        elif word == "delete":
            self._stranger_deletes()
        elif self.taken_by_strangers:
            self._stranger_writes_an_outcome(pick, word)

    def _stranger_claims(self) -> None:
        due = self.model.due(self.now + 1, lambda row: True)
        now, found = self.stranger("claim", worker=STRANGER)
        assert bool(found) == bool(due)
        for (job,) in found:
            row = self.model.rows[job]
            assert row.run_at == due[0].run_at  # several may be
            row.status, row.locked_at, row.locked_by, row.updated_at = "running", now, STRANGER, now
            row.attempts += 1
            self.taken_by_strangers.append(job)
            self.strange.add(job)

    def _stranger_writes_an_outcome(self, pick: int, status: str) -> None:
        """By id alone, as the article does it: whatever the job is by now."""
        job = self.taken_by_strangers[-1 - pick % len(self.taken_by_strangers)]
        row = self.model.rows.get(job)
        clash = row is not None and status == "pending" and self.model.would_double_a_key([row])
        with self._clash(expected=clash):
            now, _ = self.stranger(status, id=job)
        if row is None or clash:
            return
        self.strange.add(job)
        row.status, row.updated_at = status, now
        if status != "succeeded":
            row.last_error = "SMTPError"
        if status == "pending":
            row.run_at = now + 100 * SECOND

    def _stranger_reaps(self) -> None:
        now, _ = self.stranger("reap")
        for row in self.model.rows.values():
            if row.status == "running" and row.locked_at < now - 600 * SECOND:
                row.last_error = (row.last_error or "") + "\n[reaper] reclaimed stuck job"
                row.status, row.updated_at = "pending", now
                self.strange.add(row.id)

    def _stranger_requeues(self, kind: str) -> None:
        dead = [row for row in self.model.rows.values() if row.status == "dead" and row.kind == kind]
        clash = self.model.would_double_a_key(dead)
        assert not clash or self.strange & {row.id for row in dead}, "what died by our hand is in nobody's way"
        with self._clash(expected=clash):
            now, _ = self.stranger("requeue", kind=kind)
        if clash:
            return
        for row in dead:
            row.status, row.attempts, row.run_at, row.last_error, row.updated_at = "pending", 0, now, None, now
            self.counted_from[row.id], self.given_back[row.id] = self.claims[row.id], 0

    def _stranger_deletes(self) -> None:
        now, gone = self.stranger("delete")
        expired = self.model.expired(now, {"succeeded": 7 * DAY * SECOND})
        assert sorted(job for (job,) in gone) == expired
        for job in expired:
            del self.model.rows[job]

    @staticmethod
    def _clash(*, expected: bool) -> AbstractContextManager[Any]:
        return pytest.raises(psycopg.errors.UniqueViolation) if expected else nullcontext()

    # -- what holds at every instant

    @invariant()
    def rows_equal_the_model(self):
        """In one look: rows, edges, keys, sums, history, workers."""
        rows = self._fetch("select * from redrive.jobs order by id")
        self._same(rows, [vars(row) for _, row in sorted(self.model.rows.items())], COLUMNS)
        keys = Counter(row["key"] for row in rows if row["key"] is not None and row["status"] in ("pending", "running"))
        assert all(count == 1 for count in keys.values())
        for row in rows:
            job = row["id"]
            assert row["claims"] == self.claims[job]
            if job not in self.strange:
                assert row["attempts"] == self.claims[job] - self.counted_from[job] - self.given_back[job]
                assert row["status"] != "dead" or self.model.rows[job].ready_for_requeue
                assert row["status"] != "pending" or self.model.rows[job].unlocked
        history = self._fetch("select * from redrive.failures order by id")
        expected = sorted(map(vars, self.model.failures), key=lambda each: each["failed_at"])
        columns = (
            "job_id",
            "kind",
            "claim",
            "attempt",
            "outcome",
            "failed_at",
            "worker",
            "error_type",
            "key",
            "expires_at",
        )
        self._same(sorted(history, key=_place), sorted(expected, key=_place), columns)
        beats = self._fetch("select name, heartbeat_at from redrive.workers order by name")
        workers = sorted(self.model.workers.items())
        self._same(beats, [{"name": name, "heartbeat_at": beat.at} for name, beat in workers], ("name", "heartbeat_at"))
        assert {row["id"] for row in self._fetch("select id from redrive.jobs_archive")} == self.model.archived

    def _only_legal_edges(self, legal: set[tuple[str, str]]) -> None:
        after = dict(self.conn.execute("select id, status::text from redrive.jobs").fetchall())
        edges = {(was, after[job]) for job, was in self.before.items() if job in after and after[job] != was}
        assert edges <= legal
        assert {was for job, was in self.before.items() if job not in after} <= set(FINISHED)
        assert {status for job, status in after.items() if job not in self.before} <= {"pending"}
        self.before = after

    def _fetch(self, query: str) -> list[dict[str, Any]]:
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query).fetchall()

    def _same(self, found: list[dict[str, Any]], expected: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
        assert len(found) == len(expected), (found, expected)
        for is_, should in zip(found, expected, strict=True):
            for column in columns:
                assert self._alike(is_[column], should[column]), (
                    f"{column} is {is_[column]!r}, not {should[column]!r}: {is_}"
                )

    def _alike(self, found: Any, expected: Any) -> bool:
        if isinstance(found, datetime):
            off = found - self.began - timedelta(microseconds=expected) if expected is not None else timedelta.max
            return abs(off.total_seconds()) < SLACK
        if isinstance(found, str):
            found = TIMES.sub("T", found)
        return bool(found == expected)


def _place(failure: dict[str, Any]) -> tuple[int, int, str, int]:
    return failure["job_id"], failure["claim"], failure["error_type"], failure["attempt"]


@pytest.mark.slow
def test_whatever_is_done_in_whatever_order_the_rows_are_the_models(conn):
    many = settings.default.max_examples // 100  # 1, and 100 by `make model`
    run_state_machine_as_test(
        lambda: JobsTable(conn),
        settings=settings(
            max_examples=25 * many,
            stateful_step_count=35,
            derandomize=many == 1,
            database=None,
            phases=[Phase.generate] if many == 1 else list(Phase),  # made smaller by `make model`, which has the time
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
