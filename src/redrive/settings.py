"""Every knob of redrive, in one frozen place: the same names as keyword arguments, REDRIVE_* variables and --flags."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from redrive.errors import InvalidOption
from redrive.text import storable

DAY = 86_400.0
PREFIX = "REDRIVE_"
SHORTEST_LEASE = 1.0
HIGHEST_PORT = 65_536
LONGEST_NAME = 63
"""Bytes of an identifier in Postgres."""
LONGEST_VERSION = 100
"""Characters; it stands in an index."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a queue and its workers behave. Durations are seconds."""

    database_url: str = field(default="", repr=False)  # it may hold a password
    """Where the jobs are; DATABASE_URL is taken where neither this nor REDRIVE_DATABASE_URL is given."""
    schema: str = "redrive"
    """The schema that holds this installation."""
    concurrency: int = 10
    """Handlers that one worker process runs at the same time."""
    processes: int = 1
    """Worker processes that `redrive worker` starts, each with slots and connections of its own."""
    kinds: tuple[str, ...] = ()
    """Work on these kinds only; empty means all that have a handler."""
    app_version: str = ""
    """The version of the application, kept with each failure: a tag, a commit; at most 100 characters."""
    grace: float = 25.0
    """How long a worker that was told to stop waits for its running handlers before it hands their jobs back."""
    lease: float = 30.0
    """How long a worker may be silent before its jobs are given to others."""
    heartbeat: float = 0.0
    """How often a worker says that it lives; 0 means a third of the lease, and more than that is refused."""
    listen: bool = True
    """Wake by LISTEN; without it new jobs are found by polling alone."""
    listen_dsn: str = field(default="", repr=False)
    """A direct connection for LISTEN, where database_url goes through a pooler that can't carry it."""
    poll: float = 5.0
    """The longest an idle worker that can hear waits between two looks; one that can't hear looks every second."""
    breaker: bool = True
    """Hold jobs back while what they call is down, as their handlers' breakers say; without it none is held."""
    max_crashes: int = 3
    """Worker deaths, with nothing running beside it, after which a job is dead; twice as many while other workers die
    that ran nothing of its kind, unless it is 1."""
    foreign_lease: float = 600.0
    """Age of locked_at after which a job claimed by a worker that isn't redrive's is taken back."""
    retain_succeeded: float = 7 * DAY
    """How long succeeded jobs are kept; 0 keeps them for ever."""
    retain_failed: float = 30 * DAY
    """How long cancelled and discarded jobs are kept; 0 keeps them for ever."""
    retain_dead: float = 365 * DAY
    """How long dead jobs wait for a human; 0 keeps them for ever."""
    retain_failures: float = 90 * DAY
    """How long the history of failed attempts is kept; 0 keeps it for ever."""
    retain_slots: float = 7 * DAY
    """How long it is kept what became of each slot of a schedule; 0 keeps it for ever."""
    retain_stats: float = 30 * DAY
    """How long it is kept what workers counted, for charts; 0 keeps it for ever."""
    retain_audit: float = 365 * DAY
    """How long it is kept who did what, and what was sent back over time; 0 keeps it for ever."""
    schedule_grace: float = 900.0
    """How long a schedule still runs that no live worker has in its code any more; three minutes at the least."""
    archive: bool = False
    """Move what has outlived its retention to jobs_archive instead of deleting it."""
    metrics_port: int = 0
    """Port at which a worker answers /metrics and /health; 0 for none. Each of several processes takes the next."""
    metrics_host: str = "127.0.0.1"
    """Address at which it does so."""
    alert_slack: str = field(default="", repr=False)  # whoever knows it can post there
    """Incoming webhook of Slack, to which workers post what is the matter."""
    alert_webhook: str = field(default="", repr=False)
    """URL to which they post the same as JSON."""
    alert_email: tuple[str, ...] = ()
    """Addresses to which they mail it."""
    alert_smtp: str = field(default="", repr=False)
    """The server that takes mail, as smtp://user:password@host:587 or smtps://…"""
    alert_from: str = ""
    """The sender's address; without it redrive@ and the machine's name."""
    alert_desk: str = ""
    """Address of the desk, for links: https://admin.example.com/redrive."""
    alert_rules: tuple[str, ...] = ()
    """Other limits than the default, as in oldest_due=10m,dead_rate=5%,-worker."""
    alert_digest: str = "08:00"
    """When the day's digest is sent, as 08:00 Europe/Berlin; in UTC without a zone, and off for none."""
    broker_url: str = field(default="", repr=False)  # as database_url
    """The RabbitMQ to which the relay and direct=True send jobs, as amqp://user:password@host:5672/vhost."""
    broker_management_url: str = field(default="", repr=False)  # as database_url
    """RabbitMQ's management API, by which it is seen what is there, as http://user:password@host:15672; the virtual
    host is that of broker_url."""
    exit_on_db_loss: float = 0.0
    """End the worker when the database has been away this long; 0 waits for ever."""

    def __post_init__(self) -> None:
        """Refuse combinations that would lose or double jobs.

        Raises:
            InvalidOption: naming the value and the remedy.
        """
        size = len(self.schema.encode(errors="replace"))
        if not 1 <= size <= LONGEST_NAME or storable(self.schema) != self.schema:
            raise InvalidOption(f"schema {self.schema!r}: must be a name of 1 to {LONGEST_NAME} bytes")
        if "%" in self.schema or self.schema.startswith("pg_"):
            raise InvalidOption(f"schema {self.schema!r}: Postgres keeps pg_… for itself, and % is the driver's")
        for name in ("concurrency", "processes", "max_crashes"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} is {getattr(self, name)}: must be at least 1")
        for name in ("lease", "poll", "foreign_lease", "schedule_grace"):
            if not getattr(self, name) > 0:
                raise InvalidOption(f"{name} is {getattr(self, name):g} s: must be more than 0")
        for name in (
            "grace",
            "heartbeat",
            "exit_on_db_loss",
            "retain_succeeded",
            "retain_failed",
            "retain_dead",
            "retain_failures",
            "retain_slots",
            "retain_stats",
            "retain_audit",
        ):
            if not getattr(self, name) >= 0:
                raise InvalidOption(f"{name} is {getattr(self, name):g} s: must not be negative")
        if len(self.app_version) > LONGEST_VERSION or storable(self.app_version) != self.app_version:
            raise InvalidOption(
                f"app_version is {self.app_version!r:.120}: must be at most {LONGEST_VERSION} characters, without NUL"
            )
        self._demand_sense()

    def _demand_sense(self) -> None:
        if not 0 <= self.metrics_port <= HIGHEST_PORT - self.processes:
            raise InvalidOption(f"metrics_port is {self.metrics_port}: must be a port, or 0 for none")
        if self.lease < SHORTEST_LEASE:
            raise InvalidOption(
                f"lease is {self.lease:g} s: must be at least {SHORTEST_LEASE:g} s, or a living worker is taken for "
                "dead whenever the database is slow to answer"
            )
        if self.heartbeat > self.lease / 3 + 1e-9:
            raise InvalidOption(
                f"heartbeat is {self.heartbeat:g} s and lease {self.lease:g} s: a lease must see three beats; "
                f"set heartbeat to {self.lease / 3:g} s or less, or leave it out"
            )

    @property
    def beat_every(self) -> float:
        """Seconds between two heartbeats."""
        return self.heartbeat or self.lease / 3


def load(given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Merge defaults, REDRIVE_* variables and *given* values, the later ones winning; a value of None is not given.

    Raises:
        InvalidOption: for a name nobody knows (with the nearest one), or a value that can't be read.
    """
    env = os.environ if environment is None else environment
    known = {field.name: field for field in fields(Settings)}
    values: dict[str, Any] = {"database_url": env.get("DATABASE_URL", "")}
    for name in known:
        if (text := env.get(PREFIX + name.upper())) not in (None, ""):
            values[name] = _read(name, text, PREFIX + name.upper())
    for name, value in (given or {}).items():
        if name not in known:
            raise unknown(name, known)
        if value is not None:
            values[name] = _read(name, value, name)
    return replace(Settings(), **values)


def unknown(name: str, known: Iterable[str]) -> InvalidOption:
    """Make the error for an option that nobody knows; it names the nearest one."""
    near = get_close_matches(name, known, n=1)
    return InvalidOption(f"unknown option {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def seconds(value: Any, name: str) -> float:
    """Read a duration: seconds as a number, a timedelta, or text with a unit (``90s``, ``5m``, ``2h``, ``7d``).

    Raises:
        InvalidOption: when it is none of these.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        raise InvalidOption(f"{name} is {value!r}: give seconds, or a number with a unit like 90s, 5m, 2h, 7d")
    text = str(value).strip()
    unit = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
    suffix = text.lstrip("+-0123456789.eE_") if text[-1:].isalpha() else ""
    try:
        length = float(text.removesuffix(suffix)) * unit[suffix or "s"]
    except (KeyError, ValueError):
        length = math.inf
    if not math.isfinite(length):
        raise InvalidOption(f"{name} is {value!r}: give seconds, or a number with a unit like 90s, 5m, 2h, 7d")
    return length


def _read(name: str, value: Any, source: str) -> Any:
    default = getattr(Settings, name)
    if isinstance(default, bool):
        return _truth(value, source)
    if isinstance(default, int):
        return _whole(value, source)
    if isinstance(default, float):
        return seconds(value, source)
    if isinstance(default, tuple):
        return _words(value, source)
    return str(value)


def _whole(value: Any, source: str) -> int:
    try:
        if isinstance(value, str) or (int(value) == value and not isinstance(value, bool)):
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidOption(f"{source} is {value!r}: give a whole number")


def _words(value: Any, source: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise InvalidOption(f"{source} is {value!r}: give names, as a list or with commas between them")
    return tuple(part.strip() for part in parts if part.strip())


def _truth(value: Any, source: str) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "yes", "on"):
        return True
    if str(value).lower() in ("0", "false", "no", "off"):
        return False
    raise InvalidOption(f"{source} is {value!r}: give true or false")
