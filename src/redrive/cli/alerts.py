"""``redrive alerts``: what people are told, where, and what of it is the matter now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import OK, PROBLEM, Trouble
from redrive.cli.options import as_json, database, examples
from redrive.cli.session import Session, session
from redrive.words import counted

if TYPE_CHECKING:
    from redrive.alerter import Ask
    from redrive.messengers import Send
    from redrive.settings import Settings
    from redrive.statements import Statement


@click.group(
    invoke_without_command=True,
    short_help="See, try and send what people are told.",
    epilog=examples(
        "redrive alerts                      # rules, channels, and what is the matter",
        "redrive alerts --dry-run            # what would be sent now, and nothing is",
        "REDRIVE_ALERT_SLACK=https://hooks.slack.com/... redrive alerts test",
        "redrive alerts check                # look and send now: for cron, where no worker runs all the time",
    ),
)
@click.option("--dry-run", is_flag=True, help="Show the message that would be sent now; nothing is written or sent.")
@as_json
@database
@click.pass_context
def alerts(ctx: click.Context, database_url: str | None, schema: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Show the rules, the channels that are set up here, and what is the matter now.

    Workers look every 30 seconds, one of all of them, if one of REDRIVE_ALERT_SLACK, REDRIVE_ALERT_WEBHOOK and
    REDRIVE_ALERT_EMAIL is set for them. News are sent as one message: what is new, what has become worse, what is over.
    """
    ctx.obj = (database_url, schema)
    if ctx.invoked_subcommand is not None:
        if dry_run or as_json:
            raise click.UsageError("give --dry-run and --json without a command behind it")
        return
    with session(database_url, schema) as now:
        if dry_run:
            _rehearse(now, as_json=as_json)
        else:
            _show(now, as_json=as_json)


@alerts.command(epilog=examples("redrive alerts test"))
@click.pass_context
def test(ctx: click.Context) -> None:
    """Send a test message over each channel that is set up here; exit 1 when one of them fails."""
    import asyncio

    from redrive import alerter

    database_url, schema = ctx.obj
    with session(database_url, schema) as now:
        settings = now.queue.settings
        channels = _demand_channels(settings)
        message = alerter.trial(settings, now.now)
    failed = 0
    for name, send in channels.items():
        error = asyncio.run(alerter.send(send, message))
        failed += error is not None
        click.secho(f"{name}: {screen.one_line(error) if error else 'sent'}", fg="red" if error else "green")
    ctx.exit(PROBLEM if failed else OK)


@alerts.command(epilog=examples("redrive alerts check"))
@click.pass_context
def check(ctx: click.Context) -> None:
    """Look now, and send what is news and what waits; exit 1 when something could not be sent."""
    import asyncio

    from redrive import alerter

    database_url, schema = ctx.obj
    with session(database_url, schema) as now:
        settings = now.queue.settings
        channels = _demand_channels(settings)
        news = asyncio.run(alerter.look(_asker(now), settings, channels, every=1.0))
        failed = asyncio.run(alerter.deliver(_asker(now), settings.schema, channels))
    told = "somebody has just looked" if news is None else f"{len(news.changes)} news"
    click.echo(told)
    for error in failed:
        click.secho(screen.one_line(error), fg="red", err=True)
    ctx.exit(PROBLEM if failed else OK)


def _asker(now: Session) -> Ask:
    async def ask(statement: Statement[Any]) -> list[Any]:
        return now.queue.ask(replace(statement, loaders=()), now.conn)

    return ask


def _rehearse(now: Session, *, as_json: bool) -> None:
    import asyncio

    from redrive import alerter
    from redrive.alerts import compare, judge, rules
    from redrive.messengers import plain_text

    settings = now.queue.settings

    async def look() -> dict[str, Any] | None:
        [state] = await _asker(now)(_state(now))
        seen, _, before = await alerter.read(_asker(now), settings, state.last_failure)
        news = compare(judge(seen, rules(settings.alert_rules), before), before, state.now)
        return alerter.alert(news.changes, settings, state.now) if news.changes else None

    message = asyncio.run(look())
    if as_json:
        screen.document({"message": message})
    elif message is None:
        screen.note("nothing would be sent: there is no news")
    else:
        click.echo("\n".join(screen.clean(line) for line in plain_text(message).splitlines()))


def _demand_channels(settings: Settings) -> dict[str, Send]:
    from redrive.messengers import messengers

    channels = messengers(settings)
    if not channels:
        raise Trouble("no channel is set up: set REDRIVE_ALERT_SLACK, REDRIVE_ALERT_WEBHOOK or REDRIVE_ALERT_EMAIL")
    return channels


def _show(now: Session, *, as_json: bool) -> None:
    from redrive.alerts import RULES, rules
    from redrive.messengers import messengers
    from redrive.statements import named

    settings = now.queue.settings
    holding, here = rules(settings.alert_rules), list(messengers(settings))
    [state] = now.ask(_state(now))
    open_alerts = [row for row in now.ask(named("read_alerts", now.schema)) if row.told_value]
    known = {row.channel: row for row in now.ask(named("alert_channels", now.schema))}
    if as_json:
        screen.document(
            {
                "rules": {
                    name: {"on": name in holding, "limit": holding[name].limit if name in holding else None}
                    for name in RULES
                },
                "channels": {
                    name: {
                        "set_up_here": name in here,
                        "sent_at": known[name].sent_at if name in known else None,
                        "waiting": known[name].waiting if name in known else 0,
                        "error": known[name].error if name in known else None,
                    }
                    for name in sorted({*here, *known})
                },
                "alerts": [row._asdict() for row in open_alerts],
                "looked_at": state.looked_at,
                "digest_at": state.digest_at,
            }
        )
        return
    rows = [(name, holding[name].shown if name in holding else "off", rule.about) for name, rule in RULES.items()]
    screen.table(("RULE", "FROM", "WHAT"), rows)
    click.echo()
    for name in sorted({*here, *known}):
        row = known.get(name)
        sent = f"last sent {screen.ago(row.sent_at, now.now)}" if row and row.sent_at else "nothing sent yet"
        line = f"{name}: {sent}" + ("" if name in here else "; not set up here")
        if row and row.error:
            line += f"; {row.waiting} waiting: {screen.one_line(row.error)}"
        click.secho(line, fg="red" if row and row.error else None)
    if not here and not known:
        screen.note("no channel: set REDRIVE_ALERT_SLACK, REDRIVE_ALERT_WEBHOOK or REDRIVE_ALERT_EMAIL for the workers")
    looked = "no worker has looked yet" if state.looked_at is None else f"looked {screen.ago(state.looked_at, now.now)}"
    click.echo(f"{looked}; {counted(len(open_alerts), 'thing is', 'things are')} the matter")
    for row in open_alerts:
        for_so_long = screen.span((now.now - row.began_at).total_seconds())
        click.secho(f"  {row.rule}: {screen.one_line(row.text)} (for {for_so_long})", fg="red")


def _state(now: Session) -> Statement[Any]:
    from redrive.statements import named

    return named("alert_state", now.schema)
