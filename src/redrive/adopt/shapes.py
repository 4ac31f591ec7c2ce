"""The tables of other job queues, known by their columns, for those who move house: how each says what waits.

A table that was made by hand is read by the names of its columns instead, see :mod:`redrive.adopt.reading`.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from redrive.adopt.mapping import Mapping, parse
from redrive.adopt.reading import DONE, FAILED, Reading, by_map, plain, read

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.adopt.look import Table


@dataclass(frozen=True, kw_only=True)
class Known:
    """A table that is another program's."""

    name: str
    columns: frozenset[str]
    """It has all of these."""
    map: Dict[str, Any] = field(default_factory=dict)
    """Its map, without what each table says for itself; empty where nothing waits in it."""
    notes: Dict[str, str] = field(default_factory=dict)
    questions: Dict[str, str] = field(default_factory=dict)
    """What is in the configuration of the other program; the number in the map is its default."""
    words: Dict[str, str] = field(default_factory=dict)
    """Where nothing waits: what the words of `state` mean."""
    state: str | None = None

    def mapping(self, table: Table, cutover: datetime) -> Mapping:
        """Make the mapping of this very table."""
        key = table.key[0] if len(table.key) == 1 else "id"
        return parse({"key": key, **self.map, "table": table.qualified, "cutover": cutover}, self.name)


KINDS = {"job_type", "task_name", "job_name", "kind", "type"}
HOOKS = {"hook_id", "webhook_id", "endpoint_id", "target_url", "last_http_code", "http_status"}
OUTBOX = {"aggregate_id", "aggregate_type", "published_at", "topic"}
UNLOCKED: Dict[str, Any] = {"null": ["locked_at", "locked_by"]}
CLAIMED: Dict[str, Any] = {"now": ["locked_at"], "set": {"locked_by": "redrive"}}


def _boss(version: str, priority: str, names: tuple[str, str, str, str, str, str]) -> Known:
    limit, count, after, started, completed, created = names
    return Known(
        name=f"pg-boss {version}",
        columns=frozenset({"name", "data", "state", priority, *names}),
        map={
            "kind_column": "name",
            "created": created,
            "due": after,
            "runnable": {"column": "state", "values": ["created", "retry"]},
            "payload": {"form": "json", "columns": ["data"]},
            "attempts": {"column": count, "max_column": limit},
            "priority": {"column": priority, "first": "high"},
            "claimed": {"set": {"state": "active"}, "now": [started]},
            "waiting": {"set": {"state": "retry"}, "run_at": [after]},
            "succeeded": {"set": {"state": "completed"}, "now": [completed]},
            "dead": {"set": {"state": "failed"}, "now": [completed]},
        },
        notes={"attempts.max_column": "pg-boss counts retries, so its limit is one less than the tries"},
    )


KNOWN = (
    Known(
        name="django-background-tasks",
        columns=frozenset({"task_name", "task_params", "task_hash", "run_at", "repeat", "failed_at", "locked_by"}),
        map={
            "kind_column": "task_name",
            "due": "run_at",
            "runnable": {"column": "failed_at", "null": True, "where": "locked_at IS NULL"},
            "payload": {"form": "json text", "columns": ["task_params"]},
            "attempts": {"column": "attempts", "max": 25},
            "error": {"column": "last_error"},
            "priority": {"column": "priority", "first": "high"},
            "claimed": CLAIMED,
            "waiting": {**UNLOCKED, "run_at": ["run_at"]},
            "succeeded": {"delete": True},
            "dead": {**UNLOCKED, "now": ["failed_at"]},
        },
        notes={
            "payload.columns": "[args, kwargs], as JSON",
            "succeeded": "Its own worker moves the row to background_task_completedtask; here it is deleted.",
        },
        questions={"attempts.max": "How many tries? MAX_ATTEMPTS of its settings, 25 unless you have set it."},
    ),
    Known(
        name="django-q2",
        columns=frozenset({"key", "payload", "lock"}),
        map={
            "kind": "django_q",
            "due": "lock",
            "runnable": {"every_row": True},
            "payload": {"form": "columns", "columns": ["key", "payload"]},
            "attempts": {"max": 5},
            "claimed": {"later": {"lock": 3600}},
            "waiting": {"run_at": ["lock"]},
            "succeeded": {"delete": True},
            "dead": {"later": {"lock": 315_360_000}},
        },
        notes={
            "payload.columns": "a signed pickle: your handler reads it with django_q.signing.SignedPackage.loads",
            "claimed": "Its own cluster takes a row whose lock is over: it is held off for an hour.",
            "dead": "There is no word for a row that has failed for good: its lock is set ten years ahead.",
        },
        questions={"attempts.max": "How many tries? max_attempts of Q_CLUSTER; without it there is no limit."},
    ),
    Known(
        name="django-q2, what has ended",
        columns=frozenset({"func", "hook", "args", "kwargs", "started", "stopped", "success"}),
        state="success",
        words={"true": DONE, "false": FAILED},
    ),
    Known(
        name="procrastinate",
        columns=frozenset({"queue_name", "task_name", "lock", "queueing_lock", "args", "status", "scheduled_at"}),
        map={
            "kind_column": "task_name",
            "due": "scheduled_at",
            "runnable": {"column": "status", "values": ["todo"]},
            "payload": {"form": "json", "columns": ["args"]},
            "attempts": {"column": "attempts", "max": 5},
            "priority": {"column": "priority", "first": "high"},
            "claimed": {"set": {"status": "doing"}},
            "waiting": {"set": {"status": "todo"}, "run_at": ["scheduled_at"]},
            "succeeded": {"set": {"status": "succeeded"}},
            "dead": {"set": {"status": "failed"}},
        },
        notes={"payload.columns": "the task's keyword arguments"},
        questions={"attempts.max": "How many tries? The retry of each task says so, in the code; without one it is 1."},
    ),
    Known(
        name="delayed_job",
        columns=frozenset(
            {"priority", "attempts", "handler", "last_error", "run_at", "locked_at", "failed_at", "queue"}
        ),
        map={
            "kind": "delayed_job",
            "created": "created_at",
            "due": "run_at",
            "runnable": {"column": "failed_at", "null": True, "where": "locked_at IS NULL"},
            "payload": {"form": "columns", "columns": ["handler", "queue"]},
            "attempts": {"column": "attempts", "max": 25},
            "error": {"column": "last_error"},
            "priority": {"column": "priority", "first": "low"},
            "claimed": {**CLAIMED, "now": ["locked_at", "updated_at"]},
            "waiting": {**UNLOCKED, "run_at": ["run_at"], "now": ["updated_at"]},
            "succeeded": {"delete": True},
            "dead": {**UNLOCKED, "now": ["failed_at", "updated_at"]},
        },
        notes={
            "kind": "the class of the job is in the handler's YAML, so one handler of yours takes them all",
            "payload.columns": "handler is YAML of a Ruby object",
        },
        questions={"attempts.max": "How many tries? Delayed::Worker.max_attempts, 25 unless you have set it."},
    ),
    _boss(
        "10 and later",
        "priority",
        ("retry_limit", "retry_count", "start_after", "started_on", "completed_on", "created_on"),
    ),
    _boss("9", "priority", ("retrylimit", "retrycount", "startafter", "startedon", "completedon", "createdon")),
    Known(
        name="graphile-worker",
        columns=frozenset({"job_queue_id", "task_id", "payload", "run_at", "attempts", "max_attempts", "is_available"}),
        map={
            "kind": "graphile_worker",
            "created": "created_at",
            "due": "run_at",
            "runnable": {"every_row": True, "where": "locked_at IS NULL"},
            "payload": {"form": "columns", "columns": ["task_id", "payload"]},
            "attempts": {"column": "attempts", "max_column": "max_attempts"},
            "error": {"column": "last_error"},
            "priority": {"column": "priority", "first": "low"},
            "claimed": {**CLAIMED, "now": ["locked_at", "updated_at"]},
            "waiting": {**UNLOCKED, "run_at": ["run_at"], "now": ["updated_at"]},
            "succeeded": {"delete": True},
            "dead": {**UNLOCKED, "now": ["updated_at"]},
        },
        notes={
            "kind": "the task's name is in graphile_worker._private_tasks, so one handler of yours takes them all",
            "dead": "A row is dead there when its tries are used up: the count says so, no column does.",
        },
    ),
)


def known(table: Table) -> Known | None:
    """Recognise the table of another program."""
    names = {column.name for column in table.columns}
    fits = [each for each in KNOWN if each.columns <= names]
    # three columns are few: a table of one's own may have them, too
    return next((each for each in fits if each.name != "django-q2" or names == {"id", *each.columns}), None)


def reading_of(table: Table, now: datetime, *, zone: str | None = None, most: int | None = None) -> Reading:
    """Take the columns for what they are in the program whose table it is, or for what their names say."""
    there = known(table)
    if there is None:
        return read(table, zone=zone, most=most)
    by_names = read(table, zone=zone, most=most)
    if not there.map:
        return replace(by_names, state=there.state, flag=None, stamp=None, words=there.words)
    found = by_map(table, there.mapping(table, now))
    return replace(found, most=None if found.most_column else most, clocks=by_names.clocks)


def shape(table: Table, mapping: Mapping) -> str:
    """Say in words what sort of table was made by hand."""
    names = {plain(column.name) for column in table.columns}
    rule, counted = mapping.runnable, bool(mapping.attempts.column)
    found = (
        (rule.column is None, "a queue whose rows are deleted when they are done"),
        (bool(names & OUTBOX) and "event_type" in names, "a transactional outbox"),
        (not rule.values, "rows with a time that is set when they are done"),
        (rule.values == (False,), "rows with a flag that is set when they are done"),
        (bool(mapping.attempts.most_column and names & KINDS), "a table of background jobs"),
        (bool(names & HOOKS), "webhook deliveries with a schedule of retries"),
        (bool(mapping.due and counted), "a queue with states, a count of tries and a time for the next one"),
        (counted, "a queue with states and a count of tries, without a due time"),
    )
    return next((title for holds, title in found if holds), "a queue with states")
