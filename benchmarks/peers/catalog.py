"""The systems that are compared: what is installed for each, and how many jobs fit its speed.

How a system is driven stands in its adapter; this module only names versions and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
UVLOOP = "uvloop==0.23.0"
PSYCOPG = ("psycopg[binary]==3.3.9", "psycopg-pool==3.3.3")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, or a folder of node modules, that one peer has to itself."""

    name: str
    requires: tuple[str, ...]
    python: tuple[int, int] = (3, 11)
    """The oldest Python that the peer supports."""
    node: bool = False


@dataclass(frozen=True)
class System:
    """A peer in one configuration: a line of the tables."""

    name: str
    environment: Environment
    adapter: str
    variant: str = ""
    jobs: int = 20_000
    """Jobs of a drain: some seconds of work at this system's speed."""
    only: tuple[str, ...] = ()
    """Scenarios that this configuration is measured in; empty means all."""


def _python(name: str, *requires: str, python: tuple[int, int] = (3, 11)) -> Environment:
    return Environment(name, requires, python)


REDRIVE = _python("redrive", f"--editable={CHECKOUT}", UVLOOP)
GRAPHILE = Environment("graphile", ("graphile-worker@0.17.3", "pg@8.23.1"), node=True)
SPEED = ("enqueue_bulk", "drain_async", "drain_async_never_analyzed")
SLOW, FAST = 4_000, 100_000

SYSTEMS = (
    System("redrive", REDRIVE, "redrive", jobs=FAST),
    System("redrive-uvloop", REDRIVE, "redrive", variant="uvloop", jobs=FAST, only=SPEED),
    System("graphile-500", GRAPHILE, "graphile.mjs", variant="500", jobs=FAST),
    System("graphile-1000", GRAPHILE, "graphile.mjs", variant="1000", jobs=FAST, only=SPEED),
    System("graphile-2000", GRAPHILE, "graphile.mjs", variant="2000", jobs=FAST, only=SPEED),
    System("graphile-off", GRAPHILE, "graphile.mjs", variant="0", only=(*SPEED, "latency", "sustained", "idle")),
    System(
        "pgqueuer", _python("pgqueuer", "pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", UVLOOP), "pgqueuer", jobs=40_000
    ),
    System("awa", _python("awa", "awa-pg==0.6.9"), "awa"),
    System("chancy", _python("chancy", "chancy==0.26.0", *PSYCOPG, UVLOOP), "chancy"),
    System("oban", _python("oban", "oban==0.7.0", UVLOOP, python=(3, 12)), "oban", jobs=10_000),
    System("absurd", _python("absurd", "absurd-sdk==0.5.1", "absurdctl==0.5.1", *PSYCOPG, UVLOOP), "absurd", jobs=SLOW),
    System(
        "procrastinate", _python("procrastinate", "procrastinate==3.10.0", *PSYCOPG, UVLOOP), "procrastinate", jobs=SLOW
    ),
    System("saq", _python("saq", "saq[postgres]==0.26.4", *PSYCOPG, UVLOOP), "saq", jobs=SLOW),
    System("dbos", _python("dbos", "dbos==3.4.0"), "dbos", jobs=SLOW),
    System("tutorial", _python("tutorial", "psycopg2-binary==2.9.10"), "tutorial", jobs=SLOW),
)


def chosen(names: str) -> list[System]:
    """Find the systems that *names*, with commas between, mean: those of a peer, or one; all where it is empty.

    Raises:
        ValueError: for a name that nobody has.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if not any(name in (system.name, system.environment.name) for system in SYSTEMS):
            known = ", ".join(dict.fromkeys(system.environment.name for system in SYSTEMS))
            raise ValueError(f"no peer {name!r}: there are {known}")
    return [system for system in SYSTEMS if not wanted or {system.name, system.environment.name} & set(wanted)]
