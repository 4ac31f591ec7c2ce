"""What each fault does. Every function strikes, lasts, lifts what it did, and says how long the recovery took.

Those which need what this machine lacks say so by :class:`Skipped`; none is left out in silence. So do those that
struck nobody, where that can happen (nobody was on the line, nobody needed room on the full disk): they do not count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from chaos import disk
from chaos.crew import LEASE, Slot
from chaos.ledger import read
from chaos.patience import wait_for
from chaos.plan import Planned
from chaos.proxy import Proxy
from chaos.scene import HOPELESS, Scene, Skipped
from chaos.stage import ROLE

HOUR = 3600
SESSIONS = (
    "SELECT pid, application_name FROM pg_stat_activity WHERE usename = %s AND application_name LIKE 'redrive %%'"
)


# -- processes


def kill(scene: Scene, fault: Planned) -> float | None:
    """SIGKILL; when its jobs were reclaimed is found out from the audit, later."""
    with scene.victim(fault.pick) as slot:
        pid = slot.pid
        scene.crew.kill(slot)
        wait_for(lambda: slot.pid != pid)
    return None


def freeze(scene: Scene, fault: Planned) -> float | None:
    """SIGSTOP, longer than the lease, and SIGCONT: the worker comes back to jobs that are others' by now."""
    with scene.victim(fault.pick) as slot:
        scene.crew.freeze(slot)
        try:
            time.sleep(fault.lasts)
        finally:
            scene.crew.thaw(slot)
        return scene.recovered([slot], time.monotonic())


def stop(scene: Scene, fault: Planned) -> float | None:
    """SIGTERM with a grace shorter than some of the jobs; the recovery is its exit."""
    with scene.victim(fault.pick) as slot:
        since, pid = time.monotonic(), slot.pid
        scene.crew.terminate(slot)
        wait_for(lambda: slot.pid != pid, 2 * HOPELESS)
        return time.monotonic() - since


def clock(scene: Scene, fault: Planned) -> float | None:
    """Move the clock of a worker by an hour, or back to where it was."""
    slots = [slot for slot in scene.crew.slots if slot.clock is not None]
    if not slots:
        raise Skipped("no libfaketime here, and no root with apt-get to install it")
    [slot] = slots
    assert slot.clock is not None  # noqa: S101 - by the list's own condition
    now = int(slot.clock.read_text().removesuffix("s"))
    other = HOUR if now != HOUR and fault.pick < 0.5 else -HOUR if now != -HOUR else 0  # noqa: PLR2004 - a coin
    slot.clock.write_text(f"{other:+d}s")
    ours = time.time() - time.monotonic()
    try:
        wait_for(lambda: abs(_clock_of(scene, slot) - ours - other) < HOUR / 4)
    except AssertionError:
        raise Skipped("the worker did not see its clock move") from None
    return scene.recovered([slot], time.monotonic())


def _clock_of(scene: Scene, slot: Slot) -> float:
    """Say what the worker's clock showed last where the monotonic one shows 0, by its own word."""
    facts = read(scene.stage.ledger, f"clock-{slot.name}-")
    _, shows = max(((fact["at"], float(fact["shows"])) for fact in facts), default=(0.0, 0.0))
    return shows


# -- sessions


def end_a_session(scene: Scene, fault: Planned) -> float | None:
    """pg_terminate_backend of one of ours: claim, outcome, heartbeat, listen or a queue's own."""
    since = time.monotonic()
    with scene.stage.connect() as conn:
        sessions = conn.execute(SESSIONS + " ORDER BY application_name, pid", [ROLE]).fetchall()
        if not sessions:
            raise Skipped("nobody was connected")
        pid, name = sessions[int(fault.pick * len(sessions))]
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])
    owners = [slot for slot in scene.crew.up() if f":{slot.pid}:" in name]
    for slot in owners:
        scene.ledger.write("lost a session", slot=slot.name, since=since)
    return scene.recovered(owners, time.monotonic())


def connection_limit(scene: Scene, fault: Planned) -> float | None:
    """Take all connections that are left, end some of ours, and let nobody in for a while."""
    hogs: list[psycopg.Connection] = []
    told = b"too many clients|connection slots are reserved"
    with scene.complaints(told, "nobody came meanwhile", beside=2):  # twice it is ourselves who are told
        with scene.cut_off("*"):
            try:
                for end in (False, True):
                    if end:
                        _end_sessions(scene, every=2)
                    with contextlib.suppress(psycopg.OperationalError):
                        while True:
                            hogs.append(psycopg.connect(scene.stage.plain))
                time.sleep(fault.lasts)
            finally:
                for hog in hogs:
                    hog.close()
        return _all_well(scene)


def timeouts(scene: Scene, fault: Planned) -> float | None:
    """Short statement and lock timeouts for the role, on a table that is locked again and again."""
    role = sql.Identifier(ROLE)
    cancelled = scene.complaints(b"due to (statement|lock) timeout", "no statement took that long")
    with cancelled, scene.stage.connect() as conn:
        with scene.outage():
            conn.execute(sql.SQL("ALTER ROLE {} SET statement_timeout = '150ms'").format(role))
            conn.execute(sql.SQL("ALTER ROLE {} SET lock_timeout = '100ms'").format(role))
            _end_sessions(scene)
            end = time.monotonic() + fault.lasts
            while time.monotonic() < end:
                with conn.transaction():
                    conn.execute("LOCK TABLE redrive.jobs IN SHARE ROW EXCLUSIVE MODE")
                    time.sleep(0.3)
                time.sleep(0.2)
            conn.execute(sql.SQL("ALTER ROLE {} RESET ALL").format(role))
            _end_sessions(scene)
        return _all_well(scene)


def _end_sessions(scene: Scene, every: int = 1) -> None:
    with scene.stage.connect() as conn:
        for pid, _ in conn.execute(
            "SELECT pid, application_name FROM pg_stat_activity WHERE usename = %s", [ROLE]
        ).fetchall()[::every]:
            conn.execute("SELECT pg_terminate_backend(%s)", [pid])


# -- the database


def restart_fast(scene: Scene, fault: Planned) -> float | None:
    """Stop the server as an operator does, and start it again after more than a lease: nobody is reaped for it."""
    return _restart(scene, fault, "fast", at_least=1.2 * LEASE)


def restart_immediate(scene: Scene, fault: Planned) -> float | None:
    """Stop the server as a power cut does: it recovers from its log."""
    return _restart(scene, fault, "immediate")


def _restart(scene: Scene, fault: Planned, mode: str, at_least: float = 0.0) -> float | None:
    with scene.outage():
        scene.stage.server.stop(mode)
        time.sleep(at_least + fault.lasts)
        scene.stage.server.start()
    return _all_well(scene)


def failover(scene: Scene, _fault: Planned) -> float | None:
    """Kill the primary and promote its standby; counted from the moment at which that takes writes."""
    if scene.stage.no_standby:
        raise Skipped(scene.stage.no_standby)
    standby = scene.stage.add_standby()
    with scene.outage():
        since = scene.stage.promote(standby)
    return _all_well(scene, since)


def read_only(scene: Scene, fault: Planned) -> float | None:
    """default_transaction_read_only: what a primary is that somebody else is about to replace."""
    refused = scene.complaints(b"cannot execute (INSERT|UPDATE) in a read-only", "nobody wanted to write")
    with refused, scene.stage.connect() as conn:
        with scene.outage():
            conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            conn.execute("SELECT pg_reload_conf()")
            time.sleep(fault.lasts)
            conn.execute("ALTER SYSTEM RESET default_transaction_read_only")
            conn.execute("SELECT pg_reload_conf()")
            wait_for(scene.stage.accepts_writes, 60)
        return _all_well(scene)


def table_lock(scene: Scene, fault: Planned) -> float | None:
    """LOCK TABLE, as a migration that takes its time: longer than our lock timeout, now and then."""
    with scene.stage.connect() as conn:
        with scene.outage(), conn.transaction():
            conn.execute("LOCK TABLE redrive.jobs IN ACCESS EXCLUSIVE MODE")
            time.sleep(fault.lasts)
        return _all_well(scene)


def row_locks(scene: Scene, fault: Planned) -> float | None:
    """Lock rows of running and waiting jobs, as a forgotten transaction does."""
    with scene.stage.connect() as conn:
        with conn.transaction():
            rows = sql.SQL("SELECT id FROM redrive.jobs WHERE status = {} LIMIT 20 FOR UPDATE SKIP LOCKED")
            if not sum(conn.execute(rows.format(state)).rowcount for state in ("running", "pending")):
                raise Skipped("no job was waiting or running")
            time.sleep(fault.lasts)
        return _all_well(scene)


def snapshot(scene: Scene, fault: Planned) -> float | None:
    """Hold a snapshot, so that nothing can be cleaned up behind it. Nothing has to recover from that."""
    with contextlib.suppress(psycopg.OperationalError), scene.stage.connect() as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM redrive.jobs")
        time.sleep(fault.lasts)
    return None


def disk_full(scene: Scene, fault: Planned) -> float | None:
    """Fill the disk that the jobs are on."""
    if scene.stage.no_disk:
        raise Skipped(scene.stage.no_disk)
    with scene.complaints(b"could not extend file|No space left on device", "nobody needed room meanwhile"):
        with scene.outage():
            filler = disk.fill(scene.stage.disk)
            try:
                time.sleep(fault.lasts)
            finally:
                filler.unlink()
        return _all_well(scene)


def _all_well(scene: Scene, since: float | None = None) -> float | None:
    return scene.recovered(scene.crew.up(), time.monotonic() if since is None else since)


# -- the network


def cut(scene: Scene, fault: Planned) -> float | None:
    """End every connection of a way at once, without a goodbye."""

    def end(proxy: Proxy) -> None:
        if not proxy.cut():
            raise Skipped("nobody was on that way")

    return _on_the_way(scene, fault, end)


def half_close(scene: Scene, fault: Planned) -> float | None:
    """Say that the server says no more, to one sort of session."""
    roles = ("claim", "outcome", "heartbeat", "listen")
    role = roles[int(fault.pick * 1000) % len(roles)]

    def say_no_more(proxy: Proxy) -> None:
        if not proxy.half_close(role):
            raise Skipped("no such session was on that way")

    return _on_the_way(scene, fault, say_no_more, sees_roles=True)


def delay(scene: Scene, fault: Planned) -> float | None:
    """Let every packet take its time."""

    def slow(proxy: Proxy) -> None:
        proxy.delay = 0.02 + 0.2 * fault.pick
        time.sleep(fault.lasts)
        proxy.delay = 0.0

    return _on_the_way(scene, fault, slow)


def black_hole(scene: Scene, fault: Planned) -> float | None:
    """Let nothing through, and tell nobody."""

    def swallow(proxy: Proxy) -> None:
        with proxy.black_hole():
            time.sleep(fault.lasts)

    return _on_the_way(scene, fault, swallow)


def refuse(scene: Scene, fault: Planned) -> float | None:
    """Cut all connections, and take no new ones for a while."""

    def shut(proxy: Proxy) -> None:
        before = proxy.refused
        with proxy.down():
            time.sleep(fault.lasts)
        if proxy.refused == before:
            raise Skipped("nobody came meanwhile")

    return _on_the_way(scene, fault, shut)


def swallow_an_answer(scene: Scene, fault: Planned) -> float | None:
    """Cut the line in place of the answer: what was asked for is done, and nobody is told."""

    def swallow(proxy: Proxy) -> None:
        # of one that did something: most claims of a worker with nothing to do find nothing
        proxy.swallow_answer("claim" if fault.pick < 0.5 else "outcome", of=b"UPDATE [1-9]")  # noqa: PLR2004 - a coin
        swallowed = proxy.swallowed.wait(fault.lasts)
        proxy.swallow_answer("nobody")
        if not swallowed:
            raise Skipped("no such answer came by")

    return _on_the_way(scene, fault, swallow, sees_roles=True)


def _on_the_way(
    scene: Scene, fault: Planned, strike: Callable[[Proxy], None], *, sees_roles: bool = False
) -> float | None:
    # Behind a pooler nobody can tell whose session it is.
    pooled = bool(scene.stage.pooled) and not sees_roles and (fault.pick * 100) % 1 < 0.25  # noqa: PLR2004 - a quarter
    pooled = pooled or {slot.way for slot in scene.crew.slots} == {"pooled"}
    way, proxy = ("pooled", scene.stage.floor) if pooled else ("network", scene.stage.network)
    with scene.cut_off(way):
        strike(proxy)
    return scene.recovered(scene.coming_by(way), time.monotonic())


Strike = Callable[[Any, Any], float | None]
"""Strikes, lasts, lifts, and gives the seconds of the recovery: of a scene and a planned fault, whose ever."""
STRIKE: dict[str, Strike] = {
    "kill": kill,
    "freeze": freeze,
    "stop": stop,
    "clock": clock,
    "end a session": end_a_session,
    "connection limit": connection_limit,
    "timeouts": timeouts,
    "restart, fast": restart_fast,
    "restart, immediate": restart_immediate,
    "failover": failover,
    "read-only": read_only,
    "table lock": table_lock,
    "row locks": row_locks,
    "snapshot": snapshot,
    "disk full": disk_full,
    "cut": cut,
    "half-close": half_close,
    "delay": delay,
    "black hole": black_hole,
    "refuse": refuse,
    "swallow an answer": swallow_an_answer,
}
