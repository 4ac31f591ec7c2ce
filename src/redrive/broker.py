"""Is it time for a real broker? A plain answer, by what was measured on this database and by nothing else.

A broker helps where the database has no time left for jobs, or the jobs none for the application. Before that, what
looks like it is mostly too few slots, a held horizon, or one slow kind; and those are named first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.sql import SQL, Identifier

from redrive import figures
from redrive.sql import compose, text_of
from redrive.statements import Statement
from redrive.words import span

if TYPE_CHECKING:
    from redrive.diagnosis import Patient

DAY, HOUR = 86_400.0, 3600.0
MUCH_TIME, MOST_TIME = 0.25, 0.5
"""Shares of the database's time."""
A_LITTLE, A_WHOLE = 0.1, 1.0
"""Sessions that do nothing but jobs: of an idle database jobs may well have most of the time, which is no trouble."""
MANY, VERY_MANY = 1000.0, 5000.0
"""Jobs a second in the busiest minute."""
SLOW_CLAIM = 50.0
"""Milliseconds that a claim takes on average."""
LONG_WAIT = 1.0
BUSY = 0.9
VERSION_OF_TOTAL, VERSION_OF_INFO = 130_000, 140_000


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the answer rests on; None is not known."""

    jobs_a_day: int
    mean_rate: float
    peak_rate: float
    """Jobs a second in the busiest minute, or ten minutes where it is longer ago."""
    wait_p95: float | None
    """Seconds, of the last hour."""
    wait_p95_before: float | None
    """Seconds, of the last day."""
    slots_taken: float | None
    """Share of the slots of living workers that hold a job now."""
    share: float | None
    """Of the time of all statements in this database, as pg_stat_statements has it."""
    sessions: float | None
    """Seconds of statements of redrive's a second: how many sessions work for jobs alone, on average."""
    claim_ms: float | None
    held: bool
    """Something holds the horizon for long: what is measured is the effect of that."""


@dataclass(frozen=True)
class Answer:
    """The answer, and why."""

    verdict: str
    """no, not yet, worth measuring, or unknown."""
    why: str
    instead: str = ""


def judge(now: Measured) -> Answer:
    """Answer by what was measured."""
    if now.jobs_a_day == 0:
        return Answer("unknown", "no job ran within a day, so there is nothing to measure")
    if now.held:
        return Answer(
            "not yet", "something holds the horizon, which slows every claim: what is measured is that", "end it first"
        )
    busy = now.sessions or 0.0
    share = f", {now.share:.0%} of the database's time" if now.share is not None and busy >= A_LITTLE else ""
    load = f"{now.peak_rate:,.1f} jobs/s at the peak, {now.mean_rate:,.1f} on average{share}"
    grows = now.wait_p95 is not None and now.wait_p95 > max(LONG_WAIT, 3 * (now.wait_p95_before or 0.0))
    dear = (now.share or 0.0) >= MOST_TIME and busy >= A_WHOLE
    if dear or now.peak_rate >= VERY_MANY or (now.claim_ms or 0.0) >= SLOW_CLAIM:
        claim = f"; a claim takes {now.claim_ms:.0f} ms" if (now.claim_ms or 0.0) >= SLOW_CLAIM else ""
        return Answer(
            "worth measuring",
            load + claim,
            "`redrive capacity` says which step is next, and what it would buy; see docs/scale.md",
        )
    if (now.wait_p95 or 0.0) > LONG_WAIT and (now.slots_taken or 0.0) >= BUSY:
        return Answer(
            "no",
            f"{load}; jobs wait {span(now.wait_p95 or 0.0)} (p95) because {now.slots_taken:.0%} of the slots are taken",
            "more workers or more --concurrency",
        )
    if grows or ((now.share or 0.0) >= MUCH_TIME and busy >= A_LITTLE) or now.peak_rate >= MANY:
        waits = f"; waits grow: p95 {span(now.wait_p95 or 0.0)} within the hour" if grows else ""
        return Answer(
            "not yet",
            load + waits,
            "look again when it has doubled; `redrive capacity` says how far it goes, see docs/scale.md",
        )
    return Answer("no", load)


def check(patient: Patient) -> None:
    """Measure, judge, and put it down as a note; it is bad only where a broker is worth measuring."""
    measured = measure(patient)
    answer = judge(measured)
    find = patient.bad if answer.verdict == "worth measuring" else patient.note
    find(f"a real broker? {answer.verdict}: {answer.why}", answer.instead, verdict=answer.verdict, **vars(measured))


def measure(patient: Patient) -> Measured:
    """Ask for what the answer rests on."""
    stats = patient.queue.stats
    with patient.reading() as conn:
        day, hour = stats.total(DAY, connection=conn), stats.total(HOUR, connection=conn)
        tens, minutes = stats.series(DAY, connection=conn), stats.series(HOUR, connection=conn)
        fleet = figures.look(patient.queue, conn)
    spent = statements(patient)
    held = any(row.seconds is None or row.seconds > 600 for row in patient.ask("desk_horizon"))  # noqa: PLR2004 - ten minutes
    return Measured(
        jobs_a_day=day.ended,
        mean_rate=day.ended / DAY,
        peak_rate=max(*(step.ended / 600.0 for step in tens), *(step.ended / 60.0 for step in minutes)),
        wait_p95=hour.wait_p95,
        wait_p95_before=day.wait_p95,
        slots_taken=min(1.0, fleet.in_flight / fleet.slots) if fleet.slots else None,
        share=spent.ours / spent.total if spent is not None and spent.total else None,
        sessions=spent.ours / 1000 / spent.seconds if spent is not None and spent.seconds else None,
        claim_ms=spent.claim_ms if spent is not None else None,
        held=held,
    )


def statements(patient: Patient) -> Any:
    """Ask pg_stat_statements, where it is installed and this role may; its column has had two names.

    Gives the milliseconds of all statements and of redrive's (``total``, ``ours``), the WAL of the latter (``wal``),
    its ``claims`` and what one takes (``claim_ms``), and for how many ``seconds`` it has been counting; None without.
    """
    for place in patient.ask("doctor_statements_place"):
        total = "total_exec_time" if place.server_version >= VERSION_OF_TOTAL else "total_time"
        known = place.server_version >= VERSION_OF_INFO
        known_wal = place.server_version >= VERSION_OF_TOTAL
        info = Identifier(place.schema, "pg_stat_statements_info")
        since = text_of("doctor_counted_since" if known else "doctor_counted_since_unknown")
        text = compose(
            text_of("doctor_statements").replace("{since}", since),
            patient.schema,
            statements_view=Identifier(place.schema, "pg_stat_statements"),
            total_time=Identifier(total),
            info_view=info,
            wal_written=SQL("wal_bytes" if known_wal else "NULL::numeric"),
        )
        params = {"quoted": Identifier(patient.schema).as_string(None) + "."}
        try:
            [row] = patient.say(Statement(text, namedtuple_row, params, kept=False))
        except psycopg.Error:  # it is installed and not loaded, or not for this role
            return None
        return row
    return None
