"""Every pair of operations on one job, interleaved at each boundary of their statements, on two connections.

While the transaction of one is open the other speaks, and waits or does not; they commit in either order. What is left
must be what one after the other would have left, or one alone where the other says that it found nothing: it comes
round again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any

import psycopg
import pytest

from redrive import claims, ended, store
from redrive.connections import conninfo
from redrive.failure import describe
from redrive.job import Holder
from redrive.outcome import Died, Finished, Retried, parameters
from redrive.reaper import OWN_NAME
from redrive.statements import Statement, as_array, named, numbered, run
from support import wait_for
from support_engine import claim_of, claimed

W1, W2 = "here:1:aaaaaa", "here:2:bbbbbb"
LEASE, FOREIGN = 30.0, 600.0
DAY = 86_400.0
FAILURE = describe(ValueError("it failed"))
KEEP = {"succeeded": 7 * DAY, "failed": 30 * DAY, "dead": 365 * DAY}

Step = Callable[[list[Any]], Statement[Any]]
"""One transaction; it is given the answer of the step before."""

HELD = "status = 'running', attempts = 1, claims = 1, locked_at = now() - interval '1 min', locked_by = 'here:1:aaaaaa'"
SCENES = {
    "pending": "attempts = 0",
    "a suspect": "attempts = 0, claims = 1, crashes = 1, alone = true",
    "past its deadline": "expires_at = '2020-01-01 00:00+00'",
    "held": HELD,
    "held, and cancelled": f"{HELD}, cancel_requested_at = now()",
    "held by the silent": HELD,
    "dead for long": "status = 'dead', attempts = 5, claims = 5, updated_at = now() - interval '400 d'",
}


def finish(outcome: Any, *, ids: Sequence[int] = (1,)) -> Step:
    def step(_: list[Any]) -> Statement[Any]:
        batch = [Finished(claimed(id=number, claims=1), outcome, 0.1) for number in ids]
        return named("finish_jobs", "redrive", worker=W1, max_crashes=3, **parameters(batch))

    return step


def succeed(*ids: int) -> Step:
    text, ones = as_array(list(ids)), as_array([1] * len(ids))
    return lambda _: numbered("succeed_jobs", "redrive", ids=text, claims=ones, worker=W1)


def claim(_: list[Any]) -> Statement[Any]:
    return claim_of(Holder(W2, "redrive"), [("k", 5, "")], 9, 9)


def claim_alone(_: list[Any]) -> Statement[Any]:
    return claims.claim_alone(Holder(W2, "redrive"), kinds=["k"], locked=[])


def reap(seen: list[Any]) -> Statement[Any]:
    return reap_of(seen[0].ownerless)


def reap_of(orphaned: list[str]) -> Statement[Any]:
    who = {"own_name": OWN_NAME, "judge": W2, "orphaned": orphaned}
    return named("reap_jobs", "redrive", **who, lease=LEASE, foreign_age=FOREIGN, max_crashes=3, kinds=["k"])


def beat(_: list[Any]) -> Statement[Any]:
    about = {
        "host": "here",
        "pid": 1,
        "version": "0",
        "app_version": None,
        "clock_skew": None,
        "kinds": ["k"],
        "concurrency": 1,
        "in_flight": 0,
    }
    return named("beat", "redrive", name=W1, lease=LEASE, listener_pid=None, problem=None, **about)


def scan(_: list[Any]) -> Statement[Any]:
    return named("scan_finished", "redrive", after=0, window=9, shortest=7 * DAY, **KEEP)


def prune(name: str) -> Step:
    return lambda seen: named(name, "redrive", ids=seen[0].expired, shortest=7 * DAY)


def cancel(*ids: int) -> Step:
    return lambda _: store.cancel("redrive", ids=ids)


def requeue(_: list[Any]) -> Statement[Any]:
    return ended.requeue("redrive", ended.Ended(), after=0, last=9)


OPERATIONS: dict[str, tuple[Step, ...]] = {
    "claim": (claim,),
    "claim alone": (claim_alone,),
    "succeed": (succeed(1),),
    "complete": (lambda _: named("complete_job", "redrive", id=1, claim=1, worker=W1, result=None, followers=None),),
    # each other outcome is the same statement, and takes the same locks
    "retry": (finish(Retried(FAILURE, 0.0)),),
    "die": (finish(Died(FAILURE)),),
    "hand back mislaid": (lambda _: named("hand_back_mislaid", "redrive", worker=W1, known=[]),),
    "reap": (lambda _: named("survey_held", "redrive", own_name=OWN_NAME), reap),
    "bury": (lambda _: named("bury_hopeless", "redrive", kinds=["k"]),),
    "cancel": (cancel(1),),
    "requeue": (lambda _: ended.requeue_preview("redrive", ended.Ended()), requeue),
    "delete": (scan, prune("delete_finished")),
    "archive": (scan, prune("archive_finished")),
    "beat": (beat,),
    "renew": (lambda _: named("renew_leases", "redrive", ids=[1], worker=W1),),
}


@dataclass
class Desk:
    """Two who act and one who looks."""

    one: psycopg.Connection[Any]
    other: psycopg.Connection[Any]
    looker: psycopg.Connection[Any]
    hand: ThreadPoolExecutor

    def lay(self, scene: str, ids: Sequence[int] = (1,)) -> None:
        """Put the table into the state of *scene*."""
        silence = "1 h" if scene == "held by the silent" else "0"
        values = ", ".join(f"({number}, 'k', 'key {number}')" for number in ids)
        self.looker.execute(f"""
            delete from redrive.jobs; delete from redrive.failures; delete from redrive.jobs_archive;
            delete from redrive.workers;
            insert into redrive.jobs (id, kind, key) values {values};
            update redrive.jobs set {SCENES[scene]};
            insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at)
            select name, '', 1, '', '{{}}', 1, '30 s', now() - silent::interval
            from (values ('{W1}', '{silence}'), ('{W2}', '0')) w(name, silent)""")

    def state(self) -> list[Any]:
        """What there is, but for times; of those only whether there are any."""
        return self.looker.execute("""
            select 'job', status::text, attempts, claims, crashes, alone, locked_by, key, last_error,
                   array[locked_at is null, expires_at is null, cancel_requested_at is null, run_at > created_at,
                         locked_at < now() - interval '30 s']
            from redrive.jobs
            union all
            select 'failure', outcome, attempt, claim, 0, false, worker, key, error_type || message, '{}'
            from redrive.failures
            union all
            select 'worker', '', 0, 0, 0, heartbeat_at > now() - lease, name, '', '', '{}' from redrive.workers
            union all
            select 'archived', status::text, attempts, claims, crashes, alone, '', '', '', '{}'
            from redrive.jobs_archive
            order by 1, 7, 2, 3, 4, 5, 6, 8, 9""").fetchall()

    def alone(self, conn: psycopg.Connection[Any], step: Step, answer: list[Any]) -> list[Any]:
        with conn.transaction():
            return run(conn, step(answer))

    def overlap(
        self, step: Step, last: list[Any], step2: Step, last2: list[Any], *, other_first: bool
    ) -> tuple[list[Any], list[Any], bool]:
        """Speak while the transaction of the one is open; gives the answers, and whether the other had to wait."""
        with self.one.transaction():
            first = run(self.one, step(last))
            speaking = self.hand.submit(self._speak, step2, last2, commit=other_first)
            waited = wait_for(lambda: "no" if speaking.done() else self._waits() and "yes", every=0.0005) == "yes"
        second = speaking.result(10)
        if not other_first:
            self.other.commit()
        return first, second, waited

    def _speak(self, step: Step, last: list[Any], *, commit: bool) -> list[Any]:
        if commit:
            return self.alone(self.other, step, last)
        self.other.execute("begin")
        return run(self.other, step(last))

    def _waits(self) -> bool:
        pid = self.other.info.backend_pid
        [(blocked,)] = self.looker.execute("select cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchall()
        return bool(blocked)


@pytest.fixture
def desk(db) -> Iterator[Desk]:
    with ExitStack() as stack:
        dsn = conninfo(db, application="redrive test", nonce="ab12")  # with the settings of the engine's own
        conns = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(3)]
        yield Desk(*conns, stack.enter_context(ThreadPoolExecutor(1)))


def whole(desk: Desk, name: str) -> bool:
    """Do all the steps of an operation; gives whether it found something."""
    answer: list[Any] = []
    for step in OPERATIONS[name]:
        answer = desk.alone(desk.one, step, answer)
    return bool(answer)


def interleaved(
    desk: Desk, one: str, other: str, places: tuple[int, int], *, other_first: bool
) -> tuple[bool, bool, bool]:
    """Let a step of the one and a step of the other overlap; what comes before and after does not."""
    steps, steps2 = OPERATIONS[one], OPERATIONS[other]
    answer: list[Any] = []
    answer2: list[Any] = []
    for step in steps[: places[0]]:
        answer = desk.alone(desk.one, step, answer)
    for step in steps2[: places[1]]:
        answer2 = desk.alone(desk.other, step, answer2)
    at, at2 = steps[places[0]], steps2[places[1]]
    answer, answer2, waited = desk.overlap(at, answer, at2, answer2, other_first=other_first)
    for step in steps[places[0] + 1 :]:
        answer = desk.alone(desk.one, step, answer)
    for step in steps2[places[1] + 1 :]:
        answer2 = desk.alone(desk.other, step, answer2)
    return bool(answer), bool(answer2), waited


def serial(desk: Desk, scene: str) -> Callable[..., list[Any]]:
    """What operations leave that are done one after the other, worked out once."""

    @cache
    def left(*names: str) -> list[Any]:
        desk.lay(scene)
        for name in names:
            whole(desk, name)
        return desk.state()

    return left


def touching(desk: Desk, scene: str) -> list[str]:
    """The operations that do something to this scene, alone or after another."""
    left = serial(desk, scene)
    nothing = left()
    first = [name for name in OPERATIONS if left(name) != nothing]
    return first + [n for n in OPERATIONS if n not in first and any(left(f, n) != left(f) for f in first)]


@pytest.mark.parametrize("scene", SCENES)
def test_two_operations_at_once_leave_what_one_after_the_other_would(desk, scene):
    """CR-04, CL-11: and none is the victim of a deadlock."""
    left = serial(desk, scene)
    names = touching(desk, scene)
    assert len(names) > 1
    waits = 0
    for one, other in product(names, names):
        for places in product(range(len(OPERATIONS[one])), range(len(OPERATIONS[other]))):
            for other_first in (False, True):
                desk.lay(scene)
                found, found2, waited = interleaved(desk, one, other, places, other_first=other_first)
                now = desk.state()
                legal = [left(one, other), left(other, one)]
                legal += [left(one)] * (not found2) + [left(other)] * (not found)
                assert now in legal, (
                    f"{scene}: {one} and {other}, steps {places}, {other_first=}: {now}, not in {legal}"
                )
                waits += waited
                if waited:  # then it can't be first to commit
                    break
    assert waits or scene == "dead for long"  # there each passes over what another has locked


BATCHES: dict[str, Step] = {
    "succeed": succeed(1, 2, 3),
    "retry": finish(Retried(FAILURE, 0.0), ids=(1, 2, 3)),  # the writer sorts them
    "cancel": cancel(3, 1, 2),
    "reap": lambda _: reap_of([]),
    "mislaid": lambda _: named("hand_back_mislaid", "redrive", worker=W1, known=[]),
}


@pytest.mark.parametrize(("one", "other"), [*combinations_with_replacement(BATCHES, 2)])
def test_batches_lock_their_rows_in_one_order(desk, db, one, other):
    """CL-11: where a third holds the row in the middle, both queue up, and neither holds what the other wants."""
    desk.lay("held by the silent", ids=(1, 2, 3))
    with psycopg.connect(db) as third, ThreadPoolExecutor(1) as hand:
        third.execute("select from redrive.jobs where id = 2 for update")
        waiting: list[Future[Any]] = []
        for conn, executor, name in ((desk.one, desk.hand, one), (desk.other, hand, other)):
            speaking = executor.submit(run, conn, BATCHES[name]([]))
            pid = conn.info.backend_pid
            wait_for(lambda s=speaking, p=pid: s.done() or _blocked(desk, p), every=0.001)
            waiting.append(speaking)
        third.rollback()
        answers = [each.result(10) for each in waiting]
    assert len(answers[0]) + len(answers[1]) >= 3 or {one, other} == {"reap"}


def _blocked(desk: Desk, pid: int) -> bool:
    [(blocked,)] = desk.looker.execute("select cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchall()
    return bool(blocked)
