"""A report on a stranger's table as a document for scripts, and as one HTML file to send to whoever must know.

The file needs nothing else: no script, no font, no server. What came from the table is escaped in it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from redrive.words import clean, instant, number, one_line, span

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.adopt.report import Bucket, Report

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --dim: #5c6470; --line: #d8dce1; --back: #fff; --red: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --dim: #9aa3ae; --line: #3a4048; --back: #16181b; --red: #ff8a80; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 64rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.dim, td.dim { color: var(--dim); } strong.lost { color: var(--red); font-size: 1.3rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font: .85rem ui-monospace, monospace; overflow-wrap: anywhere; }
section { border-left: 3px solid var(--red); padding-left: 1rem; margin: 1.5rem 0; }
"""
VALUES = 50


def document(made: Report) -> dict[str, Any]:
    """Give the report as plain data: times are instants, and those without a zone stand as in the table."""
    table, place, census, reading = made.survey.table, made.survey.place, made.census, made.reading
    roles = ("state", "flag", "stamp", "kind", "due", "since", "attempts", "most_column", "error", "payload")
    return {
        "table": table.qualified,
        "rows": census.rows,
        "estimated": census.share < 1,
        "share_read": round(census.share, 4),
        "seconds": round(census.seconds, 3),
        "bytes": table.bytes,
        "key": list(table.key),
        "owner": table.owner,
        "row_security": {"on": table.row_security, "filters_this_role": table.filtered},
        "server": {"version": place.told, "standby": place.standby, "database": place.database, "role": place.role},
        "rights": list(place.rights),
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "nullable": column.nullable,
                "default": column.default,
                "allowed": list(column.vocabulary) if column.vocabulary else None,
                "zone_known": reading.certain(column.name) if column.name in reading.clocks else None,
            }
            for column in table.columns
        ],
        "taken_for": {role: getattr(reading, role) for role in (*roles, "created") if getattr(reading, role)},
        "indexes": [index.definition for index in table.indexes],
        "constraints": [{"name": each.name, "definition": each.definition} for each in made.survey.constraints],
        "triggers": [trigger.definition for trigger in made.survey.triggers],
        "policies": [{"name": each.name, "roles": list(each.roles)} for each in made.survey.policies],
        "values": {
            name: [
                {"value": value, "rows": rows, "means": _means(made, name, value)}
                for value, rows in census.values(name).most_common()
            ]
            for name in census.counted
        },
        "remarks": [{"level": each.level, "text": each.text, "remedy": each.remedy} for each in made.remarks],
        "copies": made.copies,
        "lost_rows": made.lost,
        "lost": [_lost(made, bucket) for bucket in made.buckets],
    }


def page(made: Report) -> str:
    """Write the report as one HTML file."""
    table, place = made.survey.table, made.survey.place
    title = f"Silently lost in {table.qualified}"
    facts = (
        f"{table.bytes / 1e6:,.1f} MB, key {', '.join(table.key) or 'none'}, owner {table.owner}. "
        f"PostgreSQL {place.told}, database {place.database}, looked at {place.now:%Y-%m-%d %H:%M:%S %Z}{_share(made)}"
    )
    rows = "row" if made.census.rows == 1 else "rows"
    body = [
        f"<h1>{_text(title)}</h1>",
        f'<p><strong class="lost">{_count(made, made.lost)} of {_count(made, made.census.rows)} {rows}</strong></p>',
        f'<p class="dim">{_text(facts)}</p>',
        *(_section(made, bucket) for bucket in made.buckets),
    ]
    if not made.buckets:
        body.append("<p>Nothing is silently lost here, as far as the columns tell.</p>")
    for name in made.census.counted:
        body += [f"<h2>{_text(name)}</h2>", _values(made, name)]
    if made.remarks:
        remarks = [(each.level, each.text, each.remedy) for each in made.remarks]
        body += ["<h2>To know before it is connected</h2>", _table(("", "what", "remedy"), remarks)]
    columns = [
        (column.name, column.type, "" if column.nullable else "NOT NULL", ", ".join(column.vocabulary or ()))
        for column in table.columns
    ]
    body += ["<h2>Columns</h2>", _table(("name", "type", "", "allowed"), columns)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _lost(made: Report, bucket: Bucket) -> dict[str, Any]:
    return {
        "bucket": bucket.rule.name,
        "title": bucket.rule.title,
        "rows": bucket.rows,
        "since": bucket.since,
        "oldest": _moment(made, bucket.since, bucket.oldest),
        "states": [{"state": state, "rows": rows} for state, rows in bucket.states.most_common()],
        "action": bucket.rule.action,
        "samples": list(bucket.samples),
    }


def _section(made: Report, bucket: Bucket) -> str:
    oldest = ""
    if bucket.oldest is not None:
        about = "" if made.reading.certain(bucket.since) else "about "
        days = span((made.survey.place.now - bucket.oldest).total_seconds())
        oldest = (
            f"<p>The oldest, by {_text(bucket.since or '')}: {_text(_moment(made, bucket.since, bucket.oldest) or '')}"
        )
        oldest += f" ({about}{days} ago).</p>"
    names = list(dict.fromkeys(name for sample in bucket.samples for name in sample if sample[name] is not None))
    samples = [tuple(_short(sample.get(name)) for name in names) for sample in bucket.samples]
    return (
        f"<section><h2>{_count(made, bucket.rows)} {_text(bucket.rule.title)}</h2>{oldest}"
        f"<p><b>Proposed:</b> {_text(bucket.rule.action)}.</p>{_table(names, samples) if samples else ''}</section>"
    )


def _values(made: Report, name: str) -> str:
    rows = made.census.values(name).most_common()
    more = f'<p class="dim">and {len(rows) - VALUES} more</p>' if rows[VALUES:] else ""
    shown = [
        ("NULL" if value is None else value, _count(made, count), _means(made, name, value) or "")
        for value, count in rows[:VALUES]
    ]
    return _table(("value", "rows", "means"), shown, right=(1,)) + more


def _means(made: Report, name: str, value: str | None) -> str | None:
    of_state = name in (made.reading.state, made.reading.flag)
    return made.census.terms.meanings.get(value) if of_state else None


def _moment(made: Report, name: str | None, at: datetime | None) -> str | None:
    if at is None:
        return None
    return instant(at) if made.reading.certain(name) else f"{at:%Y-%m-%d %H:%M:%S}"


def _share(made: Report) -> str:
    share = made.census.share
    return "" if share == 1 else f". {share:.1%} of the table were read: counts are estimates"


def _count(made: Report, rows: int) -> str:
    return ("~" if made.census.share < 1 else "") + number(rows)


def _short(value: Any) -> str:
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else str(value), 120)


def _table(headers: tuple[str, ...] | list[str], rows: list[Any], right: tuple[int, ...] = ()) -> str:
    def cell(tag: str, place: int, text: str) -> str:
        return f"<{tag}{' class=n' if place in right else ''}>{_text(text)}</{tag}>"

    lines = ["<tr>" + "".join(cell("th", place, text) for place, text in enumerate(headers)) + "</tr>"]
    lines += ["<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>" for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def _text(text: str) -> str:
    return escape(clean(text))
