"""``redrive worker``: a worker process, from the signal that ends it to its exit code; or the parent of several."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.exits import OK, Trouble, told
from redrive.cli.options import database, examples, setting
from redrive.cli.target import load_queue
from redrive.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.worker import Worker

LINGER = 3.0
"""Seconds that a worker which has ended well gets to leave: a thread of the application's may never return."""
FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

log_level = click.option(
    "--log-level",
    envvar="REDRIVE_LOG_LEVEL",
    show_envvar=True,
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="How much to say on stderr.",
)


def _amqp(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no broker's URL: most often it is the target, taken for the option's value."""
    if value and not value.startswith(("amqp://", "amqps://")):
        from redrive.masking import mask_text

        raise click.BadParameter(
            f"{mask_text(value)!r} is no amqp:// URL: put the target before --broker, or a URL after it", ctx, param
        )
    return value


@click.command(
    short_help="Run jobs until told to stop.",
    epilog=examples(
        "redrive worker app.jobs:queue",
        "redrive worker app.jobs:queue --concurrency 4 --kinds send_email,export",
        "redrive worker app.jobs:queue --processes 4   # each with its own slots and connections",
        "redrive worker app.jobs:queue --once          # from cron: what is due, then exit",
        "redrive worker app.jobs:queue --broker amqp://jobs@mq.internal/   # what redrive relay has sent there",
    ),
)
@click.argument("target", envvar="REDRIVE_APP")
@setting("--concurrency", "Handlers that run at the same time (default: 10).", metavar="N")
@setting("--app-version", "The version of the application, kept with each failure: a tag, a commit.", metavar="TEXT")
@setting("--processes", "Worker processes; one that dies is replaced (default: 1).", metavar="N")
@setting("--kinds", "Work on these kinds only: welcome,invoice (default: all that have a handler).", metavar="KIND,…")
@setting("--grace", "How long running handlers may go on after a stop (default: 25).")
@setting("--lease", "Silence after which a worker's jobs are given to others (default: 30).")
@setting("--heartbeat", "How often the worker says that it lives (default: a third of the lease).")
@setting("--listen/--no-listen", "Wake by LISTEN, or find new jobs by polling alone (default: listen).")
@setting("--listen-dsn", "A direct connection for LISTEN, where the database URL goes through a pooler.", metavar="URL")
@setting("--poll", "The longest that an idle worker waits between two looks (default: 5).")
@setting("--breaker/--no-breaker", "Hold jobs back while what they call is down, or let them fail (default: hold).")
@setting("--max-crashes", "Worker deaths, alone with the job, after which it is dead (default: 3).", metavar="N")
@setting("--foreign-lease", "Age at which the lock of a worker that isn't redrive's is broken (default: 600).")
@setting("--retain-succeeded", "How long succeeded jobs are kept, 0 for ever (default: 7d).")
@setting("--retain-failed", "How long cancelled and discarded jobs are kept, 0 for ever (default: 30d).")
@setting("--retain-dead", "How long dead jobs are kept, 0 for ever (default: 365d).")
@setting("--retain-failures", "How long the history of failed attempts is kept, 0 for ever (default: 90d).")
@setting("--retain-slots", "How long it is kept what became of a schedule's slots, 0 for ever (default: 7d).")
@setting("--retain-stats", "How long it is kept what workers counted, for charts, 0 for ever (default: 30d).")
@setting("--retain-audit", "How long it is kept who did what, 0 for ever (default: 365d).")
@setting("--schedule-grace", "How long a schedule still runs that was removed from the code (default: 900).")
@setting("--archive/--no-archive", "Move what outlived its retention to jobs_archive, or delete it (default: delete).")
@setting("--metrics-port", "Answer /metrics and /health at this port, 0 for none (default: 0).", metavar="PORT")
@setting("--metrics-host", "Address at which to do so (default: 127.0.0.1).", metavar="ADDRESS")
@click.option(
    "--broker",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    callback=_amqp,
    help="Take jobs from this RabbitMQ, as amqp://user@host/vhost, or that of REDRIVE_BROKER_URL; see redrive relay.",
)
@setting("--exit-on-db-loss", "Exit 3 when the database was away this long, 0 to wait for ever (default: 0).")
@click.option("--once", is_flag=True, envvar="REDRIVE_ONCE", show_envvar=True, help="Run what is due, then exit.")
@log_level
@database
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    *,
    target: str,
    database_url: str | None,
    schema: str | None,
    log_level: str,
    once: bool,
    **given: Any,
) -> None:
    """Run jobs of the queue TARGET (module:attribute, or REDRIVE_APP) until told to stop.

    SIGTERM and SIGINT stop it: it claims nothing more, lets what runs finish within the grace, and hands the rest back.
    A second one hands back at once. Durations are seconds, or have a unit: 500ms, 90s, 5m, 2h, 7d.
    """
    logging.basicConfig(level=log_level.upper(), format=FORMAT, stream=sys.stderr)
    queue = load_queue(target)
    where: dict[str, Any] = {"database_url": database_url, "schema": schema}
    # What the handlers enqueue goes where their jobs came from.
    queue.settings = replace(queue.settings, **{name: value for name, value in where.items() if value is not None})
    ctx.exit(
        work(queue.worker, once=once, settings={name: value for name, value in given.items() if value is not None})
    )


def work(make: Callable[..., Worker], *, once: bool, settings: dict[str, Any]) -> int:
    """Be the worker that *make* makes of *settings*, until it ends; gives its exit code."""
    import asyncio

    from redrive import log
    from redrive.cli import processes
    from redrive.worker import stop_signals

    log.attach()
    for name in ("aiormq", "aio_pika"):  # a stack for each connection that is lost; ours is said in a line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What handlers print is seen when they do, through a pipe too: Docker's log, journald, a file.
        sys.stdout.reconfigure(line_buffering=True)
    worker = make(**settings)
    if worker.settings.processes > 1 and not processes.is_member():
        return processes.Processes(worker.settings.processes, worker.settings.grace, once=once).run()
    if worker.settings.metrics_port and (others := processes.number() - 1) > 0:
        worker = make(**{**settings, "metrics_port": worker.settings.metrics_port + others})
    stop = processes.on_signal(worker.stop)
    for number in stop_signals():
        # Not the loop's own handlers: these also count a signal that comes before the loop, or while it is blocked.
        signal.signal(number, lambda *_: stop())
    logging.getLogger("redrive").info(
        "worker %s works on schema %s, %s",
        worker.name,
        worker.settings.schema,
        f"{counted(worker.settings.concurrency, 'job')} at a time, of kinds {', '.join(worker.kinds)}"
        if worker.kinds
        else "hands jobs to the broker and runs none itself",
    )
    code = OK
    with asyncio.Runner() as runner:
        try:
            with told(worker.settings.schema):
                runner.run(_attended(worker, once=once))
        except Trouble as trouble:
            trouble.show()
            code = trouble.exit_code
        if worker.running_threads:
            _leave_now(code)
        leave = threading.Timer(LINGER, _leave_now, [code])
        leave.daemon = True
        leave.start()
    return code


async def _attended(worker: Worker, *, once: bool) -> None:
    from redrive.notify import Manager, attended

    async with attended(Seen(worker), Manager()):
        await worker.run(once=once)


class Seen:
    """A worker as its service manager sees it."""

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker

    def state(self) -> str:
        """Say in a line what it is at."""
        database = self._worker.database
        if database.away_since:
            return f"waits for the database: {database.error}"
        if not hasattr(self._worker, "slots"):
            return "starts"
        taken = f"{self._worker.slots.in_flight} of {self._worker.settings.concurrency} slots taken"
        return "; ".join(filter(None, (taken, self._worker.complaints())))

    def turns(self) -> bool:
        """Whether its sign of life goes on."""
        return self._worker.turning


def _leave_now(code: int) -> None:
    """End the process under handlers that don't return; their jobs have been handed back."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
