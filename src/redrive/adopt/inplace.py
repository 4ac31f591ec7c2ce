"""The tutorial's table made into redrive's own where it stands, while the hand-written worker goes on with it.

What is there already serves; what is missing is added, step by step, each a short transaction that waits for its lock
only briefly, or done without any lock that others wait for. The steps are made of redrive's own migrations, so that
the table ends as they would have made it. They are planned from what is there: begun again, they go on where they
stopped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Literal as Choice

import psycopg
from psycopg.sql import SQL, Composable, Identifier, Literal

from redrive.adopt.look import ANYWHERE
from redrive.adopt.terms import COMMA, joined
from redrive.errors import InvalidOption
from redrive.migrate import is_ours, record
from redrive.sql import Migration, compose, migrations, query, text_of
from redrive.statements import named, run

if TYPE_CHECKING:
    from redrive.adopt.look import Column
    from redrive.adopt.survey import Survey

How = Choice["together", "alone", "copy"]
"""In one transaction; outside of any, as CONCURRENTLY wants it; a slice at a time until all rows are done."""
NEEDED = ("id", "kind", "payload", "status", "attempts", "max_attempts", "run_at")
"""Without these it is no table of the tutorial's; the others can be added."""
STATES = ("pending", "running", "succeeded", "failed", "dead")
TYPES = {"bigint": "int8", "text": "text", "jsonb": "jsonb", "int": "int4", "timestamptz": "timestamptz"}
SLICE = 2000
_TOKEN = re.compile(r"\$\$.*?\$\$|'(?:[^']|'')*'|--[^\n]*|;", re.DOTALL)
_ABOVE = re.compile(r"\A(?:\s*--[^\n]*\n)+")
_REMARK = re.compile(r"--[^\n]*")
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON \{jobs\} ")
_COLUMN = re.compile(r"ALTER\s+TABLE \{jobs\} ADD COLUMN ")
_CHECK = re.compile(r" CONSTRAINT (\w+) CHECK \((.*)\)$")
_DEFAULT = re.compile(r" DEFAULT (.+?)(?: CONSTRAINT .*)?$")
_FUNCTION = re.compile(r"\ACREATE\s+FUNCTION (\{(?:schema\}\.)?(\w+))")
_TABLE = re.compile(r"CREATE\s+TABLE \{jobs\}")
_DOMAIN = re.compile(r"(?:CREATE|COMMENT ON)\s+DOMAIN ")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the way."""

    title: str
    statements: tuple[Composable, ...]
    how: How = "together"
    undo: Composable | None = None
    """What takes away the half of it that a failure leaves."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done to a table."""

    schema: str
    steps: tuple[Step, ...]
    rows: float
    """About how many rows each must be written anew; 0 where none."""


@dataclass
class _State:
    """What is there."""

    options: list[str]
    sort: str
    type_schema: str
    type: str
    begun: bool
    copied: bool
    named: bool
    others: int
    views: list[str]
    tables: list[str]
    migrations: list[str]
    indexes: dict[str, bool] = field(default_factory=dict)
    """Whether each is whole."""
    of_status: list[Any] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)


def plan(conn: psycopg.Connection[Any], survey: Survey) -> Plan:
    """Plan how the surveyed table becomes redrive's own; *conn* is in autocommit.

    Raises:
        InvalidOption: with every reason why it can't, and what to do instead.
    """
    table = survey.table
    if refusals := _no_tutorial(survey):
        raise InvalidOption(_refused(survey, refusals))
    [row] = run(conn, named("inplace_state", ANYWHERE, table=table.oid))
    state = _State(**row._asdict())
    if refusals := _in_the_way(survey, state):
        raise InvalidOption(_refused(survey, refusals))
    state.indexes = {each.name: each.valid for each in run(conn, named("inplace_made", ANYWHERE, table=table.oid))}
    state.of_status = run(conn, named("inplace_indexes", ANYWHERE, table=table.oid))
    if state.migrations:
        state.versions = {each.version for each in run(conn, named("inplace_versions", table.schema))}
    steps = [*_domain(survey, state), *_tutorial_columns(survey)]
    if not state.migrations:
        steps.append(Step(title="a table of what was applied", statements=(query("create_migrations", table.schema),)))
    for migration in migrations():
        if migration.version not in state.versions:
            steps += _migration(survey, state, migration)
    written = state.sort == "e" and not state.copied
    return Plan(schema=table.schema, steps=tuple(steps), rows=max(table.estimate, 0.0) if written else 0.0)


def suits(survey: Survey) -> bool:
    """Tell whether it looks like the tutorial's table, so that a plan is worth asking for."""
    return not _no_tutorial(survey)


def script(made: Plan) -> str:
    """Write the plan as SQL for a human to read."""
    parts = []
    for number, step in enumerate(made.steps, 1):
        said = [f"{each.as_string(None).strip()};" for each in step.statements]
        if step.how == "together":
            said = ["BEGIN;", *said, "COMMIT;"] if len(said) > 1 else said
        elif step.how == "copy":
            said.insert(0, f"-- again and again, {SLICE} rows at a time, from where the last slice ended")
        parts.append("\n".join([f"-- {number}. {step.title}", *said]))
    return "\n\n".join(parts) + "\n"


def _refused(survey: Survey, reasons: list[str]) -> str:
    name = survey.table.qualified
    return (
        f"{name} can't be made redrive's own where it stands: {'; '.join(reasons)}. "
        f"It can be worked as it is: redrive adopt {name} --map FILE"
    )


def _no_tutorial(survey: Survey) -> list[str]:
    table, found = survey.table, []
    if missing := [name for name in NEEDED if table.column(name) is None]:
        return [f"it has no column {', '.join(missing)}, as the tutorial's table does"]
    if table.name != "jobs":
        found.append("it is not called jobs: rename it, and leave a view of the old name")
    if table.partitioned:
        found.append("it is partitioned")
    if table.key != ("id",):
        found.append("its key is not id")
    for name, definition in _tutorial().items():
        column = table.column(name)
        wanted = TYPES[definition.split()[1]] if name != "status" else ""
        if column is not None and wanted and column.base not in (wanted, *(("varchar",) if wanted == "text" else ())):
            found.append(f"{name} is {column.type}, and would have to be {definition.split()[1]}")
    if not survey.place.owns:
        found.append(f"role {survey.place.role} does not own it: ask as {table.owner}")
    if survey.place.standby:
        found.append("this is a standby: name the primary")
    return found


def _in_the_way(survey: Survey, state: _State) -> list[str]:
    found, column = [], survey.table.column("status")
    if state.migrations and state.migrations[:3] != ["version", "name", "applied_at"]:
        found.append(
            f"{survey.table.schema} has a table migrations that redrive did not make: move jobs to a schema of its own"
        )
    taken = [name for name in state.tables if is_ours(name) and name not in ("jobs", "migrations")]
    if taken and not state.migrations:
        found.append(
            f"{survey.table.schema} has {', '.join(sorted(taken))} already, which redrive needs for itself: "
            "move jobs to a schema of its own"
        )
    if column is not None and column.labels and (odd := [word for word in column.labels if word not in STATES]):
        found.append(f"its states {', '.join(odd)} are none of redrive's: write others in their place")
    if state.sort == "e" and state.views:
        found.append(
            f"{', '.join(state.views)} read its column status, which is made anew: drop them, make them again after"
        )
    if state.sort == "b" and (column is None or column.base not in ("text", "varchar")):
        found.append(f"status is {state.type}")
    return found


def _domain(survey: Survey, state: _State) -> list[Step]:
    """Give status its type: a domain over text, whose words an ORM can bind as text."""
    schema, states = survey.table.schema, joined(COMMA, map(Literal, STATES))
    if state.sort == "d":
        return []
    if state.sort == "b":
        known = [] if state.named else [compose(text_of("inplace_domain"), schema, states=states)]
        steps = [Step(title="a domain for the states", statements=tuple(known))] if known else []
        column = survey.table.column("status")
        if column is not None and column.allowed is None:
            check = (compose(text_of("inplace_known"), schema, states=states),)
            steps += [Step(title="status takes no other states", statements=check), _valid(schema, "jobs_status_known")]
        return steps

    def said(name: str, /, **more: Composable) -> Composable:
        return compose(text_of(name), schema, **more)

    there = {"name": Identifier("redrive_status_there"), "column": Identifier("redrive_status")}
    steps = []
    if not state.begun:
        begin = (
            said("inplace_domain_begin"),
            said("inplace_column_begin"),
            said("inplace_domain_known", states=states),
            said("inplace_function"),
            said("inplace_trigger"),
        )
        steps.append(Step(title="a second column for the state, which follows the first", statements=begin))
    if not state.copied:
        copy = said("inplace_copy", after=Literal(0), most=Literal(SLICE))
        steps.append(Step(title="the state of the rows that are there", statements=(copy,), how="copy"))
        if not any(each.name == "redrive_status_there" for each in survey.constraints):
            steps.append(Step(title="no row is without it", statements=(said("inplace_there", **there),)))
        steps.append(_valid(schema, "redrive_status_there"))
    renames = []
    for index in state.of_status:
        copied = f"redrive_copy_{index.oid}"
        steps += _index(schema, state, copied, _like(index, copied))
        renames.append(said("inplace_rename_index", index=Identifier(schema, copied), name=Identifier(index.name)))
    was = Identifier(state.type_schema, "job_status_was")
    swap = [
        said("inplace_drop_trigger"),
        said("inplace_drop_function"),
        said("inplace_not_null", column=there["column"]),
        said("inplace_default", column=there["column"], value=Literal("pending")),
        said("inplace_drop_constraint", name=there["name"]),
        said("inplace_drop_column"),
        said("inplace_rename_column"),
        said("inplace_rename_enum", type=Identifier(state.type_schema, state.type)),
        said("inplace_rename_domain"),
        *renames,
        *([said("inplace_drop_enum", type=was)] if state.others == 0 else []),
    ]
    return [*steps, Step(title="the second column takes the place of the first: a moment", statements=tuple(swap))]


def _tutorial_columns(survey: Survey) -> list[Step]:
    """Add what columns of the tutorial's are missing, and make the others hold what the engine relies on."""
    schema, steps = survey.table.schema, []
    for name, definition in _tutorial().items():
        column = survey.table.column(name)
        if column is None:
            steps += _added(schema, [definition])
        elif name != "id" and (name != "status" or column.base in ("text", "varchar")):
            steps += _held(schema, column, definition)
    return steps


def _held(schema: str, column: Column, definition: str) -> list[Step]:
    steps, name = [], Identifier(column.name)
    if column.default is None and (value := _DEFAULT.search(definition)):
        default = compose(text_of("inplace_default"), schema, column=name, value=SQL(value[1]).format())
        steps.append(Step(title=f"{column.name} has a default", statements=(default,)))
    if column.nullable and "NOT NULL" in definition:
        there = f"redrive_{column.name}_there"
        add = compose(text_of("inplace_there"), schema, name=Identifier(there), column=name)
        then = (
            compose(text_of("inplace_not_null"), schema, column=name),
            compose(text_of("inplace_drop_constraint"), schema, name=Identifier(there)),
        )
        steps.append(Step(title=f"no new row is without {column.name}", statements=(add,)))
        steps += [_valid(schema, there), Step(title=f"{column.name} is NOT NULL", statements=then)]
    return steps


def _migration(survey: Survey, state: _State, migration: Migration) -> list[Step]:
    """Take a migration apart: what changes the table is done online, the rest as it is."""
    schema, rest, functions, steps, indexes = survey.table.schema, [], {}, [], []
    columns = {column.name for column in survey.table.columns}
    for statement in _statements(migration.text):
        if _DOMAIN.match(statement):
            continue
        if _TABLE.match(statement):
            body, _, settings = _REMARK.sub("", statement).rpartition(") WITH (")
            steps += _added(schema, [each for each in _columns(body) if each.split()[0] not in columns])
            steps += _checks(survey, body)
            storage = compose(text_of("inplace_storage"), schema, settings=SQL(settings.rstrip(") \n")).format())
            if not any(option.startswith("fillfactor=") for option in state.options):
                steps.append(Step(title="room on its pages, and autovacuum", statements=(storage,)))
        elif _COLUMN.match(statement):
            definition = _COLUMN.sub("", statement)
            steps += _added(schema, [definition] if definition.split()[0] not in columns else [])
        elif match := _INDEX.match(statement):
            indexes.append((match[1], statement))
        else:
            rest.append(_FUNCTION.sub(r"CREATE OR REPLACE FUNCTION \1", statement))
            if match := _FUNCTION.match(statement):
                functions[match[2]] = rest[-1]
    for name, statement in indexes:
        needed = [functions[each] for each in re.findall(r"\{(\w+)\}", statement) if each in functions]
        steps += [Step(title=f"what the index {name} needs", statements=(compose(each, schema),)) for each in needed]
        made = re.sub(r"INDEX (\w+)", r"INDEX CONCURRENTLY \1", statement, count=1)
        steps += _index(schema, state, name, compose(made, schema))
    title = f"the rest of migration {migration.version:04d} {migration.name}"
    said = (*(compose(each, schema) for each in rest), record(schema, migration))
    return [*steps, Step(title=title, statements=said)]


def _checks(survey: Survey, body: str) -> list[Step]:
    schema, there = survey.table.schema, {each.name for each in survey.constraints}
    steps = []
    for each in _columns(body):
        if (check := _CHECK.search(each)) and check[1] not in there:
            condition = SQL(check[2]).format()
            add = compose(text_of("inplace_check"), schema, name=Identifier(check[1]), condition=condition)
            steps += [Step(title=f"{check[1]} for new rows", statements=(add,)), _valid(schema, check[1])]
    return steps


def _added(schema: str, definitions: list[str]) -> list[Step]:
    """Add columns; a default that is the same for all rows is not written to any."""
    add = [
        compose(text_of("inplace_add_column"), schema, definition=compose(_CHECK.sub("", each), schema))
        for each in definitions
    ]
    names = ", ".join(each.split()[0] for each in definitions)
    return [Step(title=f"the columns {names}", statements=tuple(add))] if add else []


def _valid(schema: str, name: str) -> Step:
    validate = compose(text_of("inplace_validate"), schema, name=Identifier(name))
    return Step(title=f"{name} for the rows that are there: others go on meanwhile", statements=(validate,))


def _index(schema: str, state: _State, name: str, statement: Composable) -> list[Step]:
    drop = compose(text_of("inplace_drop_index"), schema, index=Identifier(schema, name))
    if state.indexes.get(name):
        return []
    half = [Step(title=f"the half-made index {name} goes", statements=(drop,), how="alone")]
    make = Step(title=f"the index {name}: others go on meanwhile", statements=(statement,), how="alone", undo=drop)
    return [*(half if name in state.indexes else []), make]


def _like(index: Any, name: str) -> Composable:
    """Write an index of the first column for the second, whose words are texts."""
    text = re.sub(r"INDEX \S+ ON", f"INDEX CONCURRENTLY {name} ON", index.definition, count=1)
    text = re.sub(r"""('(?:[^']|'')*')::(?:(?:\w+|"[^"]+")\.)?"?job_status"?\b""", r"\1::text", text)
    text = re.sub(r"""::(?:(?:\w+|"[^"]+")\.)?"?job_status"?(\[\])?""", r"::text\1", text)
    text = re.sub(r"""(?<![\w'"])status(?![\w'"])""", "redrive_status", text)
    return SQL(text.replace("{", "{{").replace("}", "}}")).format()


def _statements(text: str) -> list[str]:
    """Take a migration apart into its statements."""
    found, begin = [], 0
    for token in _TOKEN.finditer(text):
        if token[0] == ";":
            found.append(_ABOVE.sub("", text[begin : token.start()]).strip())
            begin = token.end()
    return [statement for statement in found if statement]


def _columns(body: str) -> list[str]:
    """Take the body of a CREATE TABLE apart into its columns."""
    inner, depth, found = body[body.index("(") + 1 :], 0, [""]
    for character in inner:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [" ".join(each.split()) for each in found if each.strip()]


def _tutorial() -> dict[str, str]:
    """Give the tutorial's own columns, as redrive's first migration has them."""
    [table] = [each for each in _statements(migrations()[0].text) if _TABLE.match(each)]
    columns = {each.split()[0]: each for each in _columns(_REMARK.sub("", table).rpartition(") WITH (")[0])}
    names = list(columns)
    return {name: columns[name] for name in names[: names.index("updated_at") + 1]}
