"""`make chaos`: its checker can fail, each statement by a ledger that breaks it; its plans can be repeated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chaos import audit, beside, crew, faults, peers, slots
from chaos.brokered import section
from chaos.conductor import Struck
from chaos.evidence import Change, Evidence, Failure, Life, Row, Try, heard, looked_up
from chaos.faults import STRIKE
from chaos.invariants import COUNTS, INVARIANTS, calm, check
from chaos.ledger import Ledger, keep_time, read
from chaos.orders import DOWN, EVERY, KINDS, LIMIT, SERVICES, down, orders
from chaos.plan import GRAND, SMALL, Planned, plan
from chaos.proxy import Proxy
from chaos.report import TOLD, Circumstances, report
from chaos.scene import Scene, Skipped
from chaos.tries import repeats
from chaos.verdict import judge, reclaims
from redrive import Queue
from support_engine import drain

LEASE, SWEEP = 3.0, 6.0
A, B = "host:10:aaaaaa", "host:11:bbbbbb"


def inserted(job, at=0.0, key=None):
    return Change(100 * job, at, job, job, "quick", None, "pending", claims=0, attempts=0, crashes=0, key=key)


def moved(job, order, at, was, now, *, claims=(1, 1), attempts=(1, 1), crashes=(0, 0), holder=(A, A), key=(None, None)):
    pairs = {"claims": claims, "attempts": attempts, "crashes": crashes, "holder": holder, "key": key}
    columns = {f"{name}_was": pair[0] for name, pair in pairs.items()} | {name: pair[1] for name, pair in pairs.items()}
    return Change(100 * job + order, at, job, job, "quick", was, now, **columns)


def claimed(job, order, at, *, claim=1, holder=A, key=None):
    counts = (claim - 1, claim)
    held = {"claims": counts, "attempts": (0, 1), "holder": (None, holder), "key": (key, key)}
    return moved(job, order, at, "pending", "running", **held)


def row(job, status="succeeded", kind="quick", **columns):
    defaults = {"attempts": 1, "max_attempts": 5, "claims": 1, "crashes": 0, "last_error": None}
    return Row(job, job, kind, status, **defaults | columns)


def good():
    """A run in which one job succeeded, one was given up, and one was taken from a worker that was killed."""
    evidence = Evidence(LEASE, SWEEP, acknowledged={1, 2, 3}, rolled_back={9}, ordered={1: True}, in_one_commit={1, 9})
    evidence.ways = {"one": "network", "two": "direct"}
    evidence.lives = [Life(10, "one", 0.0, ended=5.1, killed=5.0), Life(11, "two", 0.0)]
    evidence.changes = [
        inserted(1),
        claimed(1, 1, 1.0),
        moved(1, 2, 2.0, "running", "succeeded"),
        inserted(2),
        claimed(2, 1, 1.0, holder=B),
        moved(2, 2, 2.0, "running", "dead", holder=(B, None)),
        inserted(3, key="k"),
        claimed(3, 1, 4.0, key="k"),
        moved(3, 2, 9.0, "running", "pending", attempts=(1, 0), holder=(A, None), key=("k", "k")),
        claimed(3, 3, 9.1, claim=2, holder=B, key="k"),
        moved(3, 4, 9.2, "running", "succeeded", claims=(2, 2), holder=(B, B), key=("k", "k")),
    ]
    evidence.rows = {1: row(1), 2: row(2, "dead", max_attempts=1, last_error="as told"), 3: row(3, claims=2)}
    evidence.failures = [
        Failure(2, 1, 1, "dead", "RuntimeError", B),
        Failure(3, 1, 1, "reclaimed", "WorkerLost", A),
    ]
    evidence.tries = [
        Try(1, 1, 1, A, 1.0, 1.9, "returned"),
        Try(2, 2, 1, B, 1.0, 1.9, "RuntimeError"),
        Try(3, 3, 1, A, 4.0),
        Try(3, 3, 2, B, 9.1, 9.15, "returned"),
    ]
    evidence.effects = [3]
    return evidence


def lose(evidence):
    del evidence.rows[1]


def prove_nothing(evidence):
    evidence.acknowledged.clear()


def leave_running(evidence):
    evidence.rows[4] = row(4, "running")


def succeed_unseen(evidence):
    evidence.tries[0] = replace(evidence.tries[0], how="RuntimeError")


def die_silently(evidence):
    del evidence.failures[0]


def tear_a_commit(evidence):
    evidence.effects.append(2)


def lose_an_order(evidence):
    evidence.ordered[1] = False


def commit_an_order_without_its_job(evidence):
    evidence.in_one_commit.add(8)
    evidence.ordered[8] = True


def commit_a_job_without_its_order(evidence):
    evidence.in_one_commit.add(2)


def end_twice(evidence):
    evidence.changes.append(moved(1, 9, 3.0, "running", "failed"))


def double_an_effect(evidence):
    evidence.effects.append(3)


def fail_twice(evidence):
    evidence.failures.append(evidence.failures[0])


def come_back(evidence):
    evidence.changes.append(moved(1, 9, 3.0, "succeeded", "pending"))


def pass_on_a_lease(evidence):
    evidence.changes.append(moved(1, 9, 1.5, "running", "running", claims=(1, 2), holder=(A, B)))


def count_at_rest(evidence):
    evidence.changes.append(moved(2, 9, 3.0, "dead", "dead", attempts=(1, 0), holder=(None, None)))


def bury_alive(evidence):
    evidence.changes.append(moved(4, 9, 3.0, "pending", "dead"))


def note_nothing(evidence):
    evidence.changes = [change for change in evidence.changes if change.job != 1]


def miss_a_claim(evidence):
    del evidence.changes[4]


def write_past_the_trigger(evidence):
    evidence.rows[1] = row(1, claims=7)


def delete_past_the_trigger(evidence):
    del evidence.rows[2]


def run_what_was_never_claimed(evidence):
    evidence.tries.append(Try(1, 1, 2, B, 3.0, 3.1, "returned"))


def run_what_another_has_claimed(evidence):
    evidence.tries[0] = replace(evidence.tries[0], worker=B)


def claim_without_counting(evidence):
    evidence.changes[1] = moved(1, 1, 1.0, "pending", "running", claims=(0, 1), attempts=(0, 0), holder=(None, A))


def use_a_try_up_in_silence(evidence):
    evidence.changes.append(moved(1, 9, 1.5, "running", "pending"))


def insert_what_is_used(evidence):
    evidence.changes[0] = replace(inserted(1), attempts=1)


def discard_without_a_word(evidence):
    evidence.changes[5] = replace(evidence.changes[5], now="failed")
    del evidence.failures[0]


def fail_before_the_handler(evidence):
    del evidence.tries[1]


def use_too_many_tries(evidence):
    evidence.rows[1] = row(1, attempts=6)


def keep_what_was_rolled_back(evidence):
    evidence.rows[9] = row(9)


def run_what_was_rolled_back(evidence):
    evidence.tries.append(Try(77, 9, 1, B, 1.0, 1.1, "returned"))


def hold_a_key_twice(evidence):
    evidence.changes.append(inserted(8, at=4.5, key="k"))


def condemn_an_innocent(evidence):
    evidence.rows[2] = row(2, "dead", last_error="poison: its worker died 3 times while it ran alone")


def give_up_too_soon(evidence):
    evidence.rows[2] = row(2, "dead", max_attempts=2, last_error="RuntimeError: as told")


def kill_what_had_returned(evidence):
    evidence.tries[1] = replace(evidence.tries[1], how="returned")


def run_more_than_may(evidence):
    for job in range(20, 21 + LIMIT):
        evidence.rows[job] = row(job, kind="limited")
        evidence.tries.append(Try(job, job, 1, B, 1.0 + job / 100, 3.0, "returned"))


def die_of_an_outage(evidence):
    evidence.rows[2] = row(2, "dead", kind="calls", last_error="ConnectionError: provider.example")


def reclaim_late(evidence):
    late = moved(3, 2, 19.0, "running", "pending", attempts=(1, 0), holder=(A, None), key=("k", "k"))
    evidence.changes[8] = late


def spare_the_worker(evidence):
    evidence.lives[0] = Life(10, "one", 0.0)


def retry_what_had_returned(evidence):
    """And say in the history that it failed: of that the handler knows nothing."""
    spare_the_worker(evidence)
    evidence.tries[2] = replace(evidence.tries[2], ended=8.0, how="returned")
    evidence.failures[1] = replace(evidence.failures[1], error_type="RuntimeError", outcome="retried")


def take_it_in_silence(evidence):
    """As a worker that takes the jobs of another and writes no word about it."""
    spare_the_worker(evidence)
    evidence.changes[8] = replace(evidence.changes[8], by=f"redrive heartbeat {B}")
    del evidence.failures[1]


def begin_a_claim_twice(evidence):
    evidence.tries.append(evidence.tries[0])


BROKEN = {
    "unfinished": [lose, prove_nothing],
    "left_running": [leave_running],
    "success_without_a_run": [succeed_unseen],
    "silent_end": [die_silently],
    "effect_without_success": [tear_a_commit, lose_an_order],
    "torn_order": [commit_an_order_without_its_job, commit_a_job_without_its_order],
    "ended_twice": [end_twice],
    "effect_twice": [double_an_effect],
    "failed_twice": [fail_twice],
    "illegal_edge": [come_back, pass_on_a_lease, count_at_rest, bury_alive],
    "torn_record": [note_nothing, miss_a_claim, write_past_the_trigger, delete_past_the_trigger],
    "ran_unclaimed": [run_what_was_never_claimed, run_what_another_has_claimed],
    "arithmetic": [
        claim_without_counting,
        use_a_try_up_in_silence,
        insert_what_is_used,
        discard_without_a_word,
    ],
    "too_many_tries": [use_too_many_tries],
    "tried_for_nothing": [fail_before_the_handler],
    "rolled_back_ran": [keep_what_was_rolled_back, run_what_was_rolled_back],
    "key_twice": [hold_a_key_twice],
    "innocent_death": [condemn_an_innocent],
    "undeserved_death": [give_up_too_soon, kill_what_had_returned],
    "over_the_limit": [run_more_than_may],
    "outage_death": [die_of_an_outage],
    "lease_outlived": [reclaim_late],
    "unexplained": [spare_the_worker, retry_what_had_returned],
    "same_claim_twice": [begin_a_claim_twice],
    "living_reaped": [spare_the_worker, take_it_in_silence],
}
EACH = [(name, breaks) for name, all_breaks in BROKEN.items() for breaks in all_breaks]


def test_a_good_run_breaks_nothing():
    assert {name: found for name, found in check(good()).items() if found} == {}


@pytest.mark.parametrize(("name", "breaks"), EACH, ids=[breaks.__name__ for _, breaks in EACH])
def test_each_invariant_is_broken_by_what_it_forbids_and_counts(name, breaks):
    evidence = good()
    breaks(evidence)
    assert len(check(evidence)[name]) == 1
    [count] = [invariant.count for invariant in INVARIANTS if invariant.name == name]
    assert judge(1, evidence, []).line[count] > 0


def test_every_invariant_has_a_ledger_that_breaks_it():
    assert set(BROKEN) == {invariant.name for invariant in INVARIANTS}
    assert {invariant.count for invariant in INVARIANTS} == set(COUNTS)


def end(life, at, told_at=float("inf")):
    life.ended, life.stopping = at, told_at


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda life, _: setattr(life, "killed", 5.0), "killed"),
        (lambda life, _: end(life, 5.0, told_at=4.5), "ended"),
        (lambda life, _: end(life, 5.0), ""),
        (lambda life, _: life.frozen.append((4.5, 8.5)), "frozen"),
        (lambda life, _: life.starved.append((4.5, 8.5)), "starved by the machine"),
        (lambda life, _: life.starved.append((4.5, 5.5)), ""),
        (lambda _, evidence: evidence.cut_off.append(("network", 4.5, 8.5)), "cut off"),
        (lambda _, evidence: evidence.cut_off.append(("*", 4.5, 8.5)), "cut off"),
        (lambda _, evidence: evidence.cut_off.append(("direct", 4.5, 8.5)), ""),
        (lambda life, _: life.frozen.append((10.0, 12.0)), ""),
        (lambda _, evidence: evidence.outages.append((4.5, 8.5)), ""),
    ],
)
def test_a_repeat_is_explained_by_what_happened_to_its_own_worker_and_by_nothing_else(what, why):
    evidence = good()
    life = evidence.lives[0] = Life(10, "one", 0.0)
    what(life, evidence)
    assert [repeat.why for repeat in repeats(evidence)] == [why]
    assert bool(check(evidence)["living_reaped"]) is (why == "")


def test_a_worker_that_had_just_started_is_excused_as_any_other():
    evidence = good()
    evidence.lives[0] = Life(10, "one", 3.9)
    evidence.cut_off.append(("network", 4.5, 8.5))
    assert [repeat.why for repeat in repeats(evidence)] == ["cut off"]
    assert check(evidence)["living_reaped"] == []


def test_a_retry_a_snooze_and_a_hand_back_of_a_stopped_worker_are_no_unexplained_repeats():
    evidence = good()
    evidence.lives[0] = Life(10, "one", 0.0)
    evidence.failures[1] = replace(evidence.failures[1], error_type="RuntimeError", outcome="retried")
    evidence.tries[2] = replace(evidence.tries[2], ended=8.0, how="RuntimeError")
    assert list(repeats(evidence)) == []
    del evidence.failures[1]
    assert [repeat.why for repeat in repeats(evidence)] == [""]
    evidence.lives[0].stopping = 8.0
    assert [repeat.why for repeat in repeats(evidence)] == ["stopped"]
    for how in ("Snooze", "ConnectionError"):
        evidence.tries[2] = replace(evidence.tries[2], how=how)
        assert list(repeats(evidence)) == []


def test_what_a_frozen_worker_runs_is_beyond_any_limit_and_what_a_killed_one_ran_ends_with_it():
    evidence = good()
    run_more_than_may(evidence)
    evidence.lives[1].frozen.append((0.0, 8.0))
    assert check(evidence)["over_the_limit"] == []
    evidence.lives[1].frozen.clear()
    evidence.tries[-1] = replace(evidence.tries[-1], worker=A, began=6.0)
    evidence.tries[-2] = replace(evidence.tries[-2], worker=A, ended=float("inf"), how="")
    evidence.lives[0].killed = 1.01
    assert check(evidence)["over_the_limit"] == []


def test_who_ended_its_process_by_its_own_word_may_die_for_it_and_nobody_else():
    evidence = good()
    condemn_an_innocent(evidence)
    assert len(check(evidence)["innocent_death"]) == 1
    evidence.rows[2] = replace(evidence.rows[2], kind="kills")
    assert len(check(evidence)["innocent_death"]) == 1
    evidence.suicides.add(2)
    assert check(evidence)["innocent_death"] == []
    evidence.suicides.clear()
    evidence.tries[1] = replace(evidence.tries[1], how="SystemExit")
    assert check(evidence)["innocent_death"] == []


def test_who_is_late_failed_though_its_handler_returned():
    evidence = good()
    retry_what_had_returned(evidence)
    evidence.tries[2] = replace(evidence.tries[2], kind="late")
    assert check(evidence)["unexplained"] == []


def test_each_service_is_down_for_its_part_of_the_time():
    for service in SERVICES:
        spells = [down(service, now / 10) for now in range(int(EVERY * 10))]
        assert sum(spells) == DOWN * 10


def test_nobody_can_judge_in_an_outage_nor_for_a_lease_after_it():
    evidence = good()
    assert calm(evidence, 5.0, 25.0) == 20.0
    evidence.outages = [(6.0, 8.0), (7.0, 9.0)]
    assert calm(evidence, 5.0, 25.0) == 14.0
    reclaim_late(evidence)
    assert check(evidence)["lease_outlived"] == []


def test_a_kill_has_recovered_when_the_last_of_the_workers_jobs_was_taken_back():
    assert reclaims(good()) == [4.0]


def test_the_ledger_is_read_as_it_was_written_and_a_half_line_is_left_out(tmp_path):
    ledger = Ledger(tmp_path, "worker-one")
    about = {"job": 7, "n": 1, "claim": 1, "worker": A}
    ledger.write("started", slot="one", pid=10)
    ledger.write("meant", n=[1], road="order", key=None)
    ledger.write("meant", n=[2], road="order", key="k")
    ledger.write("meant", n=[3], road="api", key=None)
    ledger.write("acknowledged", n=[1], road="order", ids=[7])
    ledger.write("rolled back", n=[2], road="order", ids=[8])
    ledger.write("unknown", n=[3], road="api")
    ledger.write("start", attempt=1, kind="quick", **about)
    ledger.write("end", how="returned", **about)
    ledger.write("start", attempt=2, kind="quick", **about | {"claim": 2})
    ledger.write("frozen", slot="one", pid=10)
    ledger.write("thawed", slot="one", pid=10)
    ledger.write("suicide", pid=10, job=7)
    ledger.write("cut off", way="network", since=0.0)
    [path] = tmp_path.glob("*.ledger")
    with path.open("a") as file:
        file.write('{"at": 1, "what": "sta')
    evidence = Evidence(LEASE, SWEEP)
    heard(evidence, read(tmp_path))
    assert (evidence.acknowledged, evidence.rolled_back, evidence.unknown) == ({1}, {2}, 1)
    assert (evidence.in_one_commit, evidence.suicides) == ({1}, {7})
    assert [(each.claim, each.how) for each in evidence.tries] == [(1, "returned"), (2, "")]
    assert {each.kind for each in evidence.tries} == {"quick"}
    assert list(read(tmp_path, "worker-two")) == []
    [life] = evidence.lives
    assert len(life.frozen) == 1
    assert life.killed < life.ended
    assert evidence.cut_off[0][0] == "network"


def test_a_wall_clock_that_is_set_in_the_middle_moves_no_time_of_the_databases(tmp_path, monkeypatch, wait_for):
    """By ten seconds ahead, as of a machine that was stopped and went on, and by twenty back."""
    over, ledger = threading.Event(), Ledger(tmp_path, "conductor")
    moved = [0.0]
    right, began = time.time, time.monotonic()
    monkeypatch.setattr("chaos.ledger.time.time", lambda: right() + moved[0])
    keeper = threading.Thread(target=keep_time, args=(ledger, over))
    keeper.start()
    seen = []
    for step in (0.0, 10.0, -20.0):
        moved[0] += step
        wait_for(lambda: len(list(read(tmp_path))) == len(seen) + 1)
        seen.append((time.time(), time.monotonic()))
    over.set()
    keeper.join()
    evidence = Evidence(LEASE, SWEEP)
    heard(evidence, read(tmp_path))
    for wall, monotonic in (seen[1], seen[2]):
        assert abs(evidence.monotonic(wall) - monotonic) < 0.1
    assert abs(evidence.monotonic(seen[2][0] - 100) - (began - 110)) < 1  # from before the first word


def test_what_the_trigger_notes_is_what_a_worker_did_and_shows_what_it_should_not_have_done(db, conn):
    """The statements of the witness are Postgres's to understand, and a record that is empty would break nothing."""
    audit.install(db, conn.info.user)
    tries: list[Try] = []
    queue = Queue(db)

    @queue.handler("quick")
    def quick(payload, job):
        tries.append(Try(job.id, payload["n"], job.claim, job.worker, time.monotonic(), time.monotonic(), "returned"))

    @queue.handler("raises", max_attempts=1)
    def raises(payload, job):
        tries.append(Try(job.id, payload["n"], job.claim, job.worker, time.monotonic(), time.monotonic(), "ValueError"))
        raise ValueError

    queue.enqueue("quick", {"n": 1}, key="k")
    queue.enqueue("raises", {"n": 2})
    drain(queue)
    queue.close()

    def broken() -> set[str]:
        evidence = Evidence(LEASE, SWEEP, acknowledged={1, 2}, tries=tries, lives=[Life(os.getpid(), "one", 0.0)])
        evidence.clocks = [(0.0, time.time() - time.monotonic())]
        looked_up(evidence, conn)
        assert {change.by.rpartition(" ")[2] for change in evidence.changes if change.was} == {tries[0].worker}
        return {name for name, found in check(evidence).items() if found}

    assert broken() == set()
    for deed, names in (
        ("update redrive.jobs set status = 'pending' where kind = 'quick'", {"unfinished", "illegal_edge"}),
        ("delete from redrive.jobs where kind = 'quick'", {"unfinished", "illegal_edge"}),
        ("update redrive.jobs set attempts = 0 where kind = 'raises'", {"illegal_edge"}),
        ("update redrive.jobs set max_attempts = 3 where kind = 'raises'", {"undeserved_death"}),
        ("delete from redrive.failures", {"silent_end", "arithmetic"}),
        ("insert into redrive.failures select * from redrive.failures", {"failed_twice"}),
        ("set local session_replication_role = replica; update redrive.jobs set claims = 9", {"torn_record"}),
        ("insert into chaos.effects (job, claim) select id, 1 from redrive.jobs", {"effect_without_success"}),
        ("delete from chaos.changes where now = 'running'", {"ran_unclaimed", "torn_record"}),
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(f"set local application_name to 'redrive cli {tries[0].worker}'")
            conn.execute("alter table redrive.failures drop constraint failures_pkey")
            conn.execute(deed)
            assert names <= broken(), deed


# -- faults


class Nobody:
    """A crew of which nobody is up."""

    slots: tuple[crew.Slot, ...] = ()

    def up(self) -> list[crew.Slot]:
        return []


@pytest.mark.parametrize("name", ["cut", "half-close", "refuse", "swallow an answer"])
def test_a_fault_on_a_line_that_nobody_is_on_does_not_count(name, tmp_path):
    with Proxy("host=127.0.0.1 port=1") as proxy:
        scene = Scene(SimpleNamespace(pooled="", network=proxy), Nobody(), Ledger(tmp_path, "conductor"))
        with pytest.raises(Skipped):
            STRIKE[name](scene, Planned(0.0, name, 0.01, 0.5))


def test_all_workers_can_be_put_behind_the_pooler(monkeypatch):
    monkeypatch.setattr(slots, "earlier", lambda _base: "")
    monkeypatch.setattr(slots, "find_libfaketime", lambda: None)
    stage = SimpleNamespace(network=SimpleNamespace(dsn="n"), direct="d", pooled="p", base=None, missing={})
    assert {(slot.way, slot.dsn) for slot in slots.fill(stage)} == {("network", "n"), ("direct", "d"), ("pooled", "p")}
    assert {(each.way, each.dsn, each.listen_dsn) for each in slots.fill(stage, pooled=True)} == {("pooled", "p", "d")}


def test_a_fault_counts_where_the_server_tells_of_it_meanwhile_and_more_often_than_of_ourselves(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("no room\n")
    scene = Scene(SimpleNamespace(server=SimpleNamespace(log=log)), Nobody(), Ledger(tmp_path, "conductor"))
    for beside_us, told, counts in ((0, "", False), (0, "no room\n", True), (1, "no room\n", False)):
        comes = contextlib.nullcontext() if counts else pytest.raises(Skipped, match="nobody needed any")
        meanwhile = scene.complaints(b"no (room|place)", "nobody needed any", beside=beside_us)
        with comes, meanwhile, log.open("a") as server:
            server.write(told)


def test_a_server_that_is_restarted_is_away_for_longer_than_a_lease(monkeypatch):
    """Else no run would show that an outage longer than the lease reaps nobody."""
    slept: list[float] = []
    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    server = SimpleNamespace(stop=lambda _mode: None, start=lambda: None)
    scene = SimpleNamespace(
        outage=contextlib.nullcontext,
        stage=SimpleNamespace(server=server),
        crew=Nobody(),
        recovered=lambda _slots, _since: 0.0,
    )
    faults.restart_fast(scene, Planned(0.0, "restart, fast", 0.0, 0.5))
    assert slept[0] > crew.LEASE


def test_who_blocks_its_event_loop_is_known_by_its_own_word_alone(tmp_path):
    ledger, other = Ledger(tmp_path, "worker-one"), Ledger(tmp_path, "worker-two")
    about = {"job": 7, "n": 1, "claim": 1, "worker": A}
    blocked = partial(ledger.under_way, "worker-one", os.getpid(), "blocks")
    other.write("start", attempt=1, kind="blocks", **about)
    ledger.write("start", attempt=1, kind="quick", **about)
    assert not blocked()
    ledger.write("end", how="returned", **about)
    ledger.write("start", attempt=1, kind="blocks", **about | {"job": 8})
    ledger.write("end", how="returned", **about | {"job": 9})
    assert blocked()
    assert not ledger.under_way("worker-one", os.getpid() + 1, "blocks"), "of the process before it"
    for number in range(100):  # what its threads do meanwhile
        ledger.write("start", attempt=1, kind="threaded", **about | {"job": number + 10})
        ledger.write("end", how="returned", **about | {"job": number + 10})
    assert blocked()
    ledger.write("end", how="returned", **about | {"job": 8})
    assert not blocked()


# -- plans


def test_the_same_seed_plans_the_same_faults_at_the_same_times_and_another_seed_others():
    assert plan(7, 250) == plan(7, 250)
    assert plan(7, 250) != plan(8, 250)
    assert list(orders(7, 500)) == list(orders(7, 500))
    assert list(islice(orders(7, 500), 50)) != list(islice(orders(8, 500), 50))


@pytest.mark.parametrize("seed", range(20))
def test_five_minutes_have_a_hundred_faults_and_every_sort_of_them(seed):
    faults = plan(seed, 250)
    assert len(faults) >= 100
    assert {fault.name for fault in faults} == {*SMALL, *GRAND}
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)


@pytest.mark.parametrize("seed", range(20))
def test_the_peers_are_given_every_fault_that_all_can_be_given(seed):
    faults = peers.drawn(seed, peers.SECONDS)
    assert {fault.name for fault in faults} == set(peers.FAULTS)
    assert all(fault.at < peers.SECONDS for fault in faults)


def test_every_fault_can_be_made_and_is_told_of():
    assert set(STRIKE) == set(TOLD) == {*SMALL, *GRAND}


def test_orders_are_of_every_kind_and_each_job_has_a_number_of_its_own():
    given = list(orders(7, 20_000))
    assert {order.kind for order in given} == set(KINDS)
    numbers = [n for order in given for n in order.numbers]
    assert numbers == list(range(len(numbers)))
    assert sum(order.rolled_back for order in given) > 100
    assert sum(order.key is not None for order in given) > 100


# -- the network, and the report


def test_a_reset_by_the_server_reaches_the_client_through_the_proxy():
    server = socket.create_server(("127.0.0.1", 0))
    with server, Proxy(make_conninfo("", host="127.0.0.1", port=server.getsockname()[1])) as proxy:
        port = int(str(conninfo_to_dict(proxy.dsn)["port"]))
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            there, _ = server.accept()
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            there.close()
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_the_report_names_every_fault_and_every_statement_and_is_no_page_of_errors(tmp_path, monkeypatch):
    for told_elsewhere in (beside, section):
        monkeypatch.setattr(told_elsewhere, "RESULTS", tmp_path / "none")
    struck = [
        Struck(Planned(1.0, "failover", 0.0, 0.5), 1.0, recovery=2.5),
        Struck(Planned(2.0, "kill", 0.0, 0.5), 2.0),
    ]
    verdict = judge(7, good(), struck)
    assert json.loads(json.dumps(verdict.line)) == {
        "seed": 7,
        "jobs": 3,
        "faults": 2,
        **dict.fromkeys(COUNTS, 0),
        "recovery_s_max": 4.0,
    }
    assert verdict.broken_bars == []
    page = report(verdict, Circumstances(300.0, "18.6", "0.1.0", {"pgbouncer": "not here"}, ["one (network)"], 80.0))
    assert "| failover | the primary killed, its standby promoted | 1 | 2.5 | 2.5 | 15 |" in page
    assert "| pgbouncer | not here |" in page
    assert "| killed | 1 |" in page
    assert all(invariant.says in page for invariant in INVARIANTS)
    widths = {line.count("|") for line in re.findall(r"(?m)^\|.*\|$", page)}
    assert widths <= {3, 7}


def test_a_recovery_beyond_its_bar_is_told():
    struck = [Struck(Planned(1.0, "restart, fast", 0.0, 0.5), 1.0, recovery=5.5)]
    assert judge(7, good(), struck).broken_bars == ["restart, fast: 5.5 s, and 5 s are the bar"]


def test_the_table_of_peers_is_put_at_the_end_of_a_report_and_renewed_there(tmp_path, monkeypatch):
    page = tmp_path / "chaos.md"
    page.write_text("# The proof\n\nwords\n")
    monkeypatch.setattr(beside, "RESULTS", tmp_path / "peers.json")
    assert beside.section() == []
    found = {"versions": {"ours": "1.0"}, "settings": "lease=6", "never_finished": 0, "begun_twice": 4}
    found |= {"finished_twice": 2, "workers_ended_by_themselves": 1, "all_done_s": None, "states": {"succeeded": 3000}}
    results = {
        "seed": 7,
        "seconds": 60.0,
        "jobs": 3000,
        "workers": 4,
        "faults": {"kill": 3},
        "systems": {"ours": found},
    }
    for times in (3, 5):
        results["faults"] = {"kill": times}
        beside.RESULTS.write_text(json.dumps(results))
        beside.renew(page)
    assert page.read_text().startswith("# The proof\n\nwords\n\n## Beside its peers\n")
    assert page.read_text().count("## Beside its peers") == 1
    assert "5 times kill" in page.read_text()
    assert "| ours 1.0 | 0 | 4 | 2 | 1 |" in page.read_text()


def test_the_answer_that_is_swallowed_is_one_to_a_claim_that_took_something():
    server = socket.create_server(("127.0.0.1", 0))
    with server, Proxy(make_conninfo("", host="127.0.0.1", port=server.getsockname()[1])) as proxy:
        port = int(str(conninfo_to_dict(proxy.dsn)["port"]))
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            there, _ = server.accept()
            client.sendall(b"application_name\0redrive claim here:1:abcdef\0")
            assert there.recv(100)
            proxy.swallow_answer("claim", of=b"UPDATE [1-9]")
            there.sendall(b"C UPDATE 0\0")
            assert client.recv(100) == b"C UPDATE 0\0"
            there.sendall(b"C UPDATE 3\0")
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""
            assert proxy.swallowed.wait(5)
            there.close()


def test_the_proxy_gives_back_the_sockets_of_what_has_ended(wait_for):
    """An hour has more connections than a process may have files open."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, Proxy(make_conninfo("", host="127.0.0.1", port=server.getsockname()[1])) as proxy:
        port = int(str(conninfo_to_dict(proxy.dsn)["port"]))
        for says_goodbye in (True, False):
            client = socket.create_connection(("127.0.0.1", port))
            accepted, _ = server.accept()
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
            [link] = proxy.links
            if says_goodbye:
                client.close()
                assert accepted.recv(1) == b""
                accepted.close()
            else:
                proxy.cut()
            wait_for(lambda: proxy.links == [])
            assert (link.client.fileno(), link.server.fileno()) == (-1, -1)
            client.close()
            accepted.close()
