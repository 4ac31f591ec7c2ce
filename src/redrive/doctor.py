"""What ails an installation, and what would mend it: looked at from the catalogs, the workers' rows and a few probes.

It changes nothing. A finding comes with what it rests on and with the remedy, as a statement or command to run where
there is one. Whether it is time for a real broker is a question of its own, see :mod:`redrive.broker`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier, Literal

from redrive import broker, figures, rabbitmq
from redrive.adopt import bridge
from redrive.connections import conninfo
from redrive.diagnosis import Diagnosis, Patient
from redrive.kinds import RELAY
from redrive.masking import mask_text
from redrive.migrate import latest
from redrive.situation import unused_slots
from redrive.sql import compose, migrations
from redrive.statements import named, run
from redrive.words import clean, counted, jobs, number, one_line, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.queue import Queue

HELD_LONG, HELD_TOO_LONG = 60.0, 600.0
"""Seconds for which something may hold the horizon until it is named, and until it is bad."""
DEAD_ROWS = 20_000
SKEW, BAD_SKEW = 2.0, 30.0
"""Seconds by which clocks may differ."""
FULL = 0.8
"""Share of the connections, of a sequence or of the transaction ids from which on it is said."""
BLOATED_BYTES, BLOATED_EACH = 50_000_000, 1000
"""An index is bloated if it is larger than the one, and takes more than the other for each entry."""
OLD = 45 * 86_400.0
"""Seconds: a succeeded job that is older says that nobody prunes, where no retention is known."""
WORKER_RIGHTS = {
    "jobs": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "workers": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "failures": ("SELECT", "INSERT", "DELETE"),
    "schedules": ("SELECT", "INSERT", "UPDATE"),
    "schedule_slots": ("SELECT", "INSERT", "DELETE"),
    "kinds": ("SELECT", "INSERT", "UPDATE"),
    "lane_rates": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "stats": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "batches": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "deploys": ("SELECT", "INSERT", "DELETE"),
    "requeues": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "audit": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "breakers": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "alerts": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "alert_messages": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "alert_state": ("SELECT", "UPDATE"),
    "adoptions": ("SELECT",),
    "subscriptions": ("SELECT", "INSERT", "UPDATE"),
    "unheard_topics": ("SELECT", "INSERT", "DELETE"),
    "migrations": ("SELECT",),
    "jobs_archive": ("SELECT", "INSERT"),
}
"""What a worker needs; the docs on roles grant the same."""
_INDEX = re.compile(r"\bCREATE (?:UNIQUE )?INDEX (\w+) ON .*?;", re.DOTALL)
_TRIGGER = re.compile(r"\bCREATE TRIGGER (\w+) .*?;", re.DOTALL)


def examine(queue: Queue, conn: psycopg.Connection[Any]) -> list[Diagnosis]:
    """Look at everything; what is bad comes first."""
    conn.read_only = True
    patient = Patient(queue, conn)
    for name, check in CHECKS.items():
        patient.begin(name)
        try:
            check(patient)
        except psycopg.Error as error:
            if conn.broken:
                raise
            patient.unknown(error)
    order = {"bad": 0, "unknown": 1, "note": 2}
    return sorted(patient.found, key=lambda found: order[found.level])


def _horizon(patient: Patient) -> None:
    for row in patient.ask("desk_horizon"):
        if row.seconds is not None and row.seconds < HELD_LONG:
            continue
        if row.what == "session":
            remedy = patient.remedy("remedy_end_session", pid=Literal(int(row.name)))
        elif row.what == "prepared transaction":
            remedy = patient.remedy("remedy_end_prepared", gid=Literal(row.name))
        else:
            remedy = patient.remedy("remedy_drop_slot", slot=Literal(row.name))
        who = f"{row.what} {row.name}" + (f" ({row.application})" if row.application else "")
        since = "" if row.seconds is None else f" for {span(row.seconds)}"
        find = patient.bad if (row.seconds or 0.0) > HELD_TOO_LONG else patient.note
        find(
            f"{who} keeps Postgres from removing dead rows{since}",
            f"if it was forgotten: {remedy}",
            state=row.state,
            seconds=row.seconds,
            query=one_line(mask_text(row.query), 200),
        )


def _vacuum(patient: Patient) -> None:
    [settings] = patient.ask("doctor_settings")
    if not settings.autovacuum or not settings.track_counts:
        off = "autovacuum" if not settings.autovacuum else "track_counts"
        remedy = patient.remedy("remedy_switch_on", setting=Identifier(off))
        patient.bad(f"{off} is off: dead rows are never removed", remedy)
    for row in patient.ask("doctor_tables"):
        table = Identifier(patient.schema, row.name)
        seen = {"live": row.live, "dead": row.dead, "vacuumed": row.vacuumed, "bytes": row.bytes}
        if row.autovacuum_off:
            remedy = patient.remedy("remedy_autovacuum", table=table)
            patient.bad(f"autovacuum is off for {row.name}", remedy, **seen)
        if (row.dead or 0) >= DEAD_ROWS and row.dead > (row.live or 0) / 2:
            when = "it was never vacuumed" if row.vacuumed is None else "autovacuum does not keep up"
            text = f"{row.name} has {number(row.dead)} dead rows to {number(row.live)} live ones: {when}"
            patient.note(
                text, "once nothing holds the horizon: " + patient.remedy("remedy_vacuum", table=table), **seen
            )
    if settings.frozen_age > max(settings.freeze_max_age * 1.5, 2**31 * 0.5):
        patient.bad(
            f"the oldest transaction id of the database is {number(settings.frozen_age)} old, at 2.1 billion it stops",
            "find out what stops autovacuum from freezing (see horizon), then VACUUM (FREEZE);",
            frozen_age=settings.frozen_age,
        )


def _indexes(patient: Patient) -> None:
    there = {row.name: row for row in patient.ask("doctor_indexes")}
    for name, text in _made(_INDEX, patient.schema).items():
        if name not in there:
            create = re.sub(r"INDEX", "INDEX CONCURRENTLY", text, count=1)
            patient.bad(f"the index {name} is missing", create, index=name)
    for name, row in there.items():
        index = Identifier(patient.schema, name)
        seen = {"index": name, "table": row.table_name, "bytes": row.bytes, "entries": row.entries}
        if not row.valid:
            # One that a REINDEX left behind is a copy; it is not known to us by its name.
            drop = re.search(r"_ccnew\d*$|_ccold\d*$", name)
            remedy = patient.remedy("remedy_drop_index" if drop else "remedy_reindex", index=index)
            patient.bad(f"the index {name} is invalid: its building was broken off", remedy, **seen)
        elif row.bytes > BLOATED_BYTES and row.bytes > BLOATED_EACH * max(row.entries, 1):
            text = f"the index {name} takes {row.bytes / 1e6:,.0f} MB for {number(row.entries)} entries"
            patient.note(text, patient.remedy("remedy_reindex", index=index), **seen)


def _triggers(patient: Patient) -> None:
    there = {row.name: row for row in patient.ask("doctor_triggers")}
    for name, text in _made(_TRIGGER, patient.schema).items():
        row = there.get(name)
        if row is None:
            patient.bad(f"the trigger {name} is missing: workers are not woken by what it tells", text, trigger=name)
        elif row.enabled == "D":
            names = {"table": Identifier(patient.schema, row.table_name), "trigger": Identifier(name)}
            remedy = patient.remedy("remedy_enable_trigger", **names)
            patient.bad(f"the trigger {name} is disabled: workers are not woken by what it tells", remedy, trigger=name)


def _made(pattern: re.Pattern[str], schema: str) -> dict[str, str]:
    """Find what the migrations make, by name, as the statements that made it."""
    found: dict[str, str] = {}
    for step in migrations():
        text = re.sub(r"^\s*--.*$", "", step.text, flags=re.MULTILINE)
        for match in pattern.finditer(text):
            found[match[1]] = " ".join(compose(match[0], schema).as_string(None).split())
    return found


def _schema(patient: Patient) -> None:
    [row] = patient.ask("installed_version")
    if row.version < latest():
        patient.note(f"the schema is at version {row.version}, this redrive at {latest()}", "redrive migrate")


def _rights(patient: Patient) -> None:
    wanted = [(table, privilege) for table, several in WORKER_RIGHTS.items() for privilege in several]
    for row in patient.ask("doctor_roles"):
        if not row.works:
            continue
        role = Identifier(row.role)
        if not patient.ask("doctor_usage", role=row.role)[0].allowed:
            patient.bad(
                f"the workers' role {row.role} may not use the schema", patient.remedy("remedy_usage", role=role)
            )
        tables, privileges = [table for table, _ in wanted], [privilege for _, privilege in wanted]
        missing: dict[str, list[str]] = {}
        for right in patient.ask("doctor_rights", role=row.role, tables=tables, privileges=privileges):
            missing.setdefault(right.name, []).append(right.privilege)
        for table, several in missing.items():
            names = {"privileges": SQL(", ").join(map(SQL, several)), "table": Identifier(patient.schema, table)}
            grant = patient.remedy("remedy_rights", role=role, **names)
            patient.bad(f"the workers' role {row.role} lacks {', '.join(several)} on {table}", grant, role=row.role)
    [settings] = patient.ask("doctor_settings")
    if not settings.sees_all:
        patient.note(
            f"the role {settings.role} does not see what others do: who holds the horizon may be hidden",
            patient.remedy("remedy_monitor", role=Identifier(settings.role)),
        )


def _workers(patient: Patient) -> None:
    for row in patient.ask("list_workers"):
        if row.alive and row.problem:
            who = "relay" if row.works_as == RELAY else "worker"
            patient.bad(
                f"{who} {row.name}: {mask_text(row.problem)}", f"see the log of process {row.pid} on {row.host}"
            )


def _listening(patient: Patient) -> None:
    rows = patient.ask("doctor_listeners")
    deaf, gone = [row.name for row in rows if row.deaf], [row.name for row in rows if row.gone]
    if deaf:
        patient.note(
            f"no wake-up reaches {len(deaf)} of {counted(len(rows), 'living worker')}: jobs are found by polling alone",
            "unless they run with --no-listen on purpose: REDRIVE_LISTEN_DSN, a direct connection past the pooler",
            workers=deaf[:20],
        )
    if gone:
        patient.note(
            f"{counted(len(gone), 'living worker has', 'living workers have')} lost the session for LISTEN",
            "see the log",
            workers=gone[:20],
        )
    for row in patient.ask("desk_server"):
        if row.notifications > 0.01:  # noqa: PLR2004 - of a queue that is empty as a rule
            (patient.bad if row.notifications > 0.5 else patient.note)(  # noqa: PLR2004 - a full one fails commits
                f"the notification queue is {row.notifications:.0%} full: some session LISTENs and does not read",
                patient.remedy("remedy_find_listener") + " and end it",
                full=row.notifications,
            )


def _pooler(patient: Patient) -> None:
    nonce = "doctor"
    dsn = patient.queue.settings.database_url
    try:
        with psycopg.connect(
            conninfo(dsn, application="redrive doctor", nonce=nonce), autocommit=True, prepare_threshold=None
        ) as conn:
            [facts] = run(conn, named("session_facts", patient.schema))
            shared = facts.nonce != nonce
    except psycopg.OperationalError as error:
        if "startup parameter" not in str(error):
            raise
        shared = True
    if shared:
        patient.note(
            "the database is reached through a pooler that shares sessions: nothing is prepared, and nothing heard",
            "give workers REDRIVE_LISTEN_DSN, or the direct URL where their few connections can be afforded",
            host=str(conninfo_to_dict(dsn).get("host", "")),
        )


def _clocks(patient: Patient) -> None:
    for row in patient.ask("doctor_clocks"):
        skew = max(row.ahead, row.least, key=abs)
        if abs(skew) > SKEW:
            (patient.bad if abs(skew) > BAD_SKEW else patient.note)(
                f"the clock of {row.host} is {span(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the database's",
                "set both by NTP; redrive itself goes by the database's alone, but logs and your code don't",
                host=row.host,
                seconds=skew,
            )


def _kinds(patient: Patient) -> None:
    with patient.reading() as conn:
        now = figures.look(patient.queue, conn)
    routed = rabbitmq.routed(patient)  # those want a relay first, which is looked for beside the broker
    if not now.alive:
        if any(depth.due for depth in now.depths if depth.kind not in routed):
            patient.bad("no worker is alive, and jobs are due", patient.queue.worker_command)
        return
    by_kind = {depth.kind: depth for depth in now.depths}
    for kind in now.unknown:
        depth = by_kind[kind]
        more = " or more" if depth.capped(depth.pending) else ""
        broker = ", and with --broker, for it is routed" if kind in routed else ""
        patient.bad(
            f"no living worker knows kind {kind}: {jobs(depth.due, 'due')}{more}, "
            f"the oldest for {span(depth.oldest_due or 0.0)}",
            f"workers with its handler (or aliases=[...] if it was renamed){broker}, "
            f"or: redrive cancel --kind {clean(kind)}",
            kind=kind,
            due=depth.due,
        )


def _topics(patient: Patient) -> None:
    for row in patient.ask("list_unheard", limit=20):
        patient.note(
            f"{row.topic} is published, last at {row.last:%Y-%m-%d %H:%M %Z}, and nobody subscribes to it",
            f"@queue.subscribe in the code of a worker, or: redrive topics add {clean(row.topic)} KIND",
            topic=row.topic,
            since=row.since,
        )
    for row in patient.ask("list_subscriptions", kind=None, topic=None):
        if row.disabled_at is not None:
            patient.note(
                f"{row.kind} subscribes to {row.topic} no more: no live worker has had that in its code",
                f"where it was taken out on purpose: redrive topics remove {clean(row.topic)} {clean(row.kind)}",
                disabled_at=row.disabled_at,
            )


def _sequences(patient: Patient) -> None:
    for row in patient.ask("doctor_sequences"):
        if row.last is not None and row.last > FULL * row.most:
            (patient.bad if row.last > 0.95 * row.most else patient.note)(
                f"the sequence {row.name} is at {number(row.last)} of {number(row.most)}",
                patient.remedy("remedy_sequence", sequence=Identifier(patient.schema, row.name))
                + " and the column a bigint",
                last=row.last,
                most=row.most,
            )


def _settings(patient: Patient) -> None:
    [settings] = patient.ask("doctor_settings")
    if not settings.idle_in_transaction:
        patient.note(
            "idle_in_transaction_session_timeout is 0: a transaction that somebody forgot is kept for ever",
            patient.remedy("remedy_idle", database=Identifier(settings.database)),
        )
    if 0 < settings.statement_timeout < 1000:  # noqa: PLR2004 - a second
        patient.note(
            f"statement_timeout is {settings.statement_timeout} ms: pruning and counting will be cut off",
            "a longer one for the workers' role, such as 30s",
        )
    for row in patient.ask("desk_server"):
        if row.connections > FULL * row.connections_most:
            (patient.bad if row.connections > 0.95 * row.connections_most else patient.note)(
                f"{row.connections} of {row.connections_most} connections are taken; a worker process needs four",
                "a pooler for the application, or ALTER SYSTEM SET max_connections = ...; and a restart",
                connections=row.connections,
                most=row.connections_most,
            )
        if row.idle_slots:
            patient.note(
                unused_slots(row.idle_slots),
                patient.remedy("remedy_find_slots") + " then pg_drop_replication_slot(...)",
            )


def _retention(patient: Patient) -> None:
    keep = patient.queue.settings.retain_succeeded
    for row in patient.ask("doctor_oldest"):
        limit = max(2 * keep, keep + 2 * 86_400.0) if keep else OLD
        if row.age is not None and row.age > limit:
            patient.note(
                f"the oldest succeeded job is {span(row.age)} old: retention is off, or no worker prunes",
                "run workers with REDRIVE_RETAIN_SUCCEEDED=7d; or now: redrive prune --succeeded 7d",
                age=row.age,
            )


def _adoptions(patient: Patient) -> None:
    with patient.reading() as conn:
        found = [(row, bridge.troubles(conn, patient.schema, row)) for row in bridge.adoptions(conn, patient.schema)]
    for row, troubles in found:
        for trouble in troubles:
            patient.bad(f"adopted table {row.name}: {trouble}", f"see `redrive adopt status {row.name}`")


CHECKS: dict[str, Callable[[Patient], None]] = {
    "horizon": _horizon,
    "vacuum": _vacuum,
    "indexes": _indexes,
    "triggers": _triggers,
    "schema": _schema,
    "rights": _rights,
    "workers": _workers,
    "listening": _listening,
    "pooler": _pooler,
    "clocks": _clocks,
    "kinds": _kinds,
    "topics": _topics,
    "sequences": _sequences,
    "settings": _settings,
    "retention": _retention,
    "adoptions": _adoptions,
    "rabbitmq": rabbitmq.check,
    "broker": broker.check,
}
"""Each check by its name, in the order in which they are made."""
