"""What each column of a stranger's table is taken for, by its name and type: a reading, not yet a map.

It serves the report, which changes nothing, and the proposal of a map, which a human reads. What no name can tell, such
as the zone of a timestamp, is left open here and asked for there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redrive.adopt.look import NUMBERS, TEXTS, TIMES, WHOLE
from redrive.adopt.mapping import Clock

if TYPE_CHECKING:
    from redrive.adopt.look import Column, Table
    from redrive.adopt.mapping import Mapping

WAITING, WORKING, DONE, FAILED, ENDED = "waiting", "working", "done", "failed", "ended"
"""What a word of a status column means; ENDED is over and nobody's business, such as cancelled."""
# fmt: off
MEANINGS = {
    WAITING: """pending queued new waiting scheduled ready created todo open deferred delayed retrying retry
        retry_scheduled available enqueued unsent not_sent outstanding initial idle requeued received to_send
        unprocessed not_started""",
    WORKING: """processing running in_progress inprogress sending started active working locked doing claimed
        executing delivering reserved acquired picked busy publishing dispatching leased""",
    DONE: """sent done completed complete succeeded success successful delivered published finished processed ok closed
        dispatched handled archived executed""",
    FAILED: """failed fail failure error errored abandoned dead dead_letter deadletter bounced rejected undeliverable
        expired exhausted gave_up giveup aborted timeout timed_out crashed stuck discarded poison""",
    ENDED: "cancelled canceled skipped ignored suppressed unsubscribed superseded disabled deleted revoked",
}
_NAMES = {
    "created": """created_at created created_on inserted_at date_created creation_date create_time enqueued_at queued_at
        added_at created_date created_time inserted insert_time ts timestamp""",
    "due": """next_retry_at next_attempt_at run_at scheduled_at send_after scheduled_for available_at due_at not_before
        retry_at execute_at process_after start_after next_run_at deliver_at send_at scheduled_time eta visible_at
        next_retry next_attempt next_run due run_after deliver_after scheduled""",
    "since": """locked_at claimed_at started_at start_time started processing_started_at picked_at reserved_at
        attempted_at last_attempt_at last_attempted_at last_tried_at heartbeat_at started_on last_attempt updated_at
        modified_at updated modified last_updated""",
    "failed_at": """failed_at last_failed_at error_at dead_at died_at last_attempt_at last_attempted_at updated_at
        modified_at updated""",
    "stamp": """sent_at delivered_at published_at succeeded_at completed_at processed_at finished_at dispatched_at
        done_at executed_at performed_at handled_at date_sent sent_on sent_date sent published completed_on processed_on
        completed finished processed""",
    "attempts": """attempts retry_count attempt retries tries try_count attempt_count attempts_count num_attempts
        failure_count fail_count failed_attempts send_attempts delivery_attempts retrycount attempts_made""",
    "most_column": "max_attempts max_retries retry_limit max_tries attempts_max max_retry retries_max retrylimit",
    "error": """last_error error error_message last_error_message failure_reason error_text error_msg err exception
        error_details fail_reason status_message errors""",
    "payload": """payload data args arguments params parameters job_data message content event_data task_params body
        event_payload input""",
    "kind": """kind job_type type event_type task_name job_name task_identifier task event job_class action handler
        queue_name mail_type message_type template name""",
    "priority": "priority prio importance urgency weight",
    "owner": "locked_by claimed_by worker_id worker reserved_by processing_by lock_id picked_by lock_token owner",
    "flag": """sent is_sent processed is_processed done is_done completed is_completed delivered is_delivered published
        is_published dispatched handled executed finished is_finished succeeded success email_sent""",
    "deleted": "deleted_at archived_at removed_at",
    "died": "failed_at dead_at died_at",
    "taken": "locked_at claimed_at reserved_at picked_at",
}
# fmt: on
_TYPES: dict[str, tuple[str, ...]] = {
    "attempts": tuple(WHOLE),
    "most_column": tuple(WHOLE),
    "flag": ("bool",),
    "payload": ("json", "jsonb", "bytea"),
    "priority": (*NUMBERS, *TEXTS),
    "owner": (*TEXTS, *WHOLE, "uuid"),
}
"""Which types suit a role; a text where nothing is said."""
_STATUS = re.compile(r"(?:^|_)(?:status|state)$")
_WORDS = {word: meaning for meaning, words in MEANINGS.items() for word in words.split()}
_OF_TIME = ("created", "due", "since", "failed_at", "stamp", "deleted", "died", "taken")


def meaning(word: str) -> str | None:
    """Say what a word of a status column means, None where nobody can tell."""
    return _WORDS.get(plain(word))


def plain(word: str) -> str:
    """Bring a word or name to the spelling that words are known by: ``inProgress `` is ``in_progress``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word.strip())
    return re.sub(r"[\s\-.]+", "_", spaced).lower()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the columns are taken for; None where no column is."""

    state: str | None = None
    """Words or numbers that say how far a row is."""
    flag: str | None = None
    """A boolean that is true when the work is done."""
    stamp: str | None = None
    """A time that is set when the work is done."""
    died: str | None = None
    """A time that is set when the work has failed for good; it counts where no word says how far a row is."""
    taken: str | None = None
    """A time that is set while the work is under way; likewise."""
    created: str | None = None
    due: str | None = None
    since: str | None = None
    """When a row that is being worked was taken; when it was made, where nothing else tells."""
    failed_at: str | None = None
    attempts: str | None = None
    most_column: str | None = None
    most: int | None = None
    error: str | None = None
    payload: str | None = None
    kind: str | None = None
    priority: str | None = None
    owner: str | None = None
    deleted: str | None = None
    clocks: Dict[str, Clock] = field(default_factory=dict)
    """How times stand in the columns of times; a timestamp whose zone nobody has said has none here."""
    words: Dict[str, str] = field(default_factory=dict)
    """What the words of `state` mean, where the map says so."""
    nothing: str | None = None
    """What NULL in `state` or `flag` means, where the map says so."""

    def means(self, word: str | None) -> str | None:
        """Say what a value of `state`, as text, means."""
        return None if word is None else self.words.get(word) or meaning(word)

    def certain(self, column: str | None) -> bool:
        """Tell whether a column of times says what time it is."""
        clock = self.clocks.get(column or "")
        return clock is not None and not (clock.form == "timestamp" and clock.zone is None)


def read(table: Table, *, zone: str | None = None, most: int | None = None) -> Reading:
    """Take each column for what its name and type say.

    Args:
        table: what the catalogs say.
        zone: of all timestamps without one, where a human has said so.
        most: tries in all, where no column says so.
    """
    found: dict[str, str | None] = {}
    for role in _NAMES:
        found[role] = _by_name(table, role)
    status = [column for column in table.columns if _STATUS.search(plain(column.name)) and _wordy(column)]
    status.sort(key=lambda column: (plain(column.name) not in ("status", "state"), len(column.name)))
    if found["stamp"] == found["flag"]:  # a column called sent is the one or the other, by its type
        found["stamp"] = None
    for role in ("since", "failed_at"):
        found[role] = found[role] or found["created"]
    if found["stamp"] == found["due"]:
        found["stamp"] = None
    clocks = {column.name: clock for column in table.columns if (clock := clock_of(column, zone))}
    return Reading(
        **found,  # type: ignore[arg-type] # its names are those of fields that hold a column
        state=status[0].name if status else None,
        most=None if found["most_column"] else most,
        clocks=clocks,
    )


def by_map(table: Table, mapping: Mapping) -> Reading:
    """Take each column for what the map says, and the others for what their names say."""
    guessed = read(table)
    rule, words = mapping.runnable, dict[str, str]()
    for said, writes in ((WORKING, mapping.claimed), (DONE, mapping.succeeded), (FAILED, mapping.dead)):
        if (value := writes.values.get(rule.column or "")) is not None:
            words.setdefault(_text(value), said)
    words |= {_text(value): WAITING for value in rule.values}
    by_words = bool(rule.values)
    ends_dead = rule.column is not None and rule.column in (*mapping.dead.now, *mapping.dead.values)
    return Reading(
        since=guessed.since,
        failed_at=guessed.failed_at,
        owner=guessed.owner,
        deleted=guessed.deleted,
        taken=guessed.taken,
        state=rule.column if by_words else None,
        stamp=guessed.stamp if by_words else None if ends_dead else rule.column,
        died=rule.column if ends_dead and not by_words else guessed.died,
        created=mapping.created,
        due=mapping.due,
        attempts=mapping.attempts.column,
        most_column=mapping.attempts.most_column,
        most=mapping.attempts.most,
        error=mapping.error,
        payload=mapping.payload.columns[0] if mapping.payload.form.startswith("json") else None,
        kind=mapping.kind_column,
        priority=mapping.priority.column if mapping.priority else None,
        clocks={**guessed.clocks, **mapping.times},
        words=words,
        nothing=WAITING if rule.null and by_words else None,
    )


def clock_of(column: Column, zone: str | None = None) -> Clock | None:
    """Say how times stand in a column, by its type; None where its name doesn't promise any."""
    if column.base == "timestamptz":
        return Clock(form="timestamptz")
    if column.base in TIMES:
        return Clock(form="timestamp", zone=zone)
    named = any(plain(column.name) in _NAMES[role].split() for role in _OF_TIME) or plain(column.name).endswith("_at")
    if not named or column.base not in ("int4", "int8", "numeric", "float8", *TEXTS) or column.vocabulary:
        return None
    if column.base in TEXTS:
        return Clock(form="iso", zone=zone) if plain(column.name).endswith(("_at", "_on", "_time")) else None
    return Clock(form="epoch s")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wordy(column: Column) -> bool:
    return bool(column.labels) or column.base in TEXTS or column.base in WHOLE


def _by_name(table: Table, role: str) -> str | None:
    names = {plain(column.name): column for column in table.columns}
    for name in _NAMES[role].split():
        if (column := names.get(name)) is not None and _suits(column, role):
            return column.name
    return None


def _suits(column: Column, role: str) -> bool:
    if role in _OF_TIME:
        return clock_of(column) is not None
    if role == "payload" and column.base in TEXTS:
        return plain(column.name) != "body"
    return column.base in _TYPES.get(role, TEXTS) or (role in ("kind", "priority") and bool(column.labels))
