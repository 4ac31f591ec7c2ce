"""The documentation: every block runs, every link leads somewhere, every setting and every command is the real one."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import click
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import redrive.settings
import shell
from engine import Inside, insert
from pages import PAGES, ROOT, RUN, Session, blocks
from redrive import Queue
from redrive.cli import COMMANDS, cli
from redrive.ended import Ended
from redrive.events import TickFailed, subscribe
from redrive.senders.email import Email, Mail
from redrive.senders.smtp import Smtp
from redrive.senders.webhook import Delivery, Webhook
from redrive.settings import Settings
from redrive.store import Wishes, list_jobs, workers
from redrive.web import operators
from support import wait_for

DOCS = ROOT / "docs"
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def read(name: str) -> str:
    return (ROOT / name).read_text()


# -- every block is run


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_the_page_does_what_the_page_says(name, request, tmp_path):
    page = blocks(ROOT / name)
    if not any(block.language in RUN and not block.not_run for block in page):
        return
    installs = any("redrive migrate" in block.text and not block.not_run for block in page)
    with Session(request.getfixturevalue("empty_db" if installs else "db"), tmp_path) as session:
        session.run(page)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_run_says_why_and_is_little(name):
    page = blocks(ROOT / name)
    left_out = [block for block in page if block.language in RUN and block.not_run]
    assert len(left_out) <= 3, [block.place for block in left_out]
    for before, block in zip([None, *page], page, strict=False):
        if block.language in ("", "text") and not block.not_run:
            assert before is not None, f"{block.place}: output of nothing"
            assert block.follows_on, f"{block.place}: name its language, or say what it is the output of"
            assert before.language in RUN, f"{block.place}: output of nothing"


# -- every link leads somewhere


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_the_page_leads_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name} links to {target}"


def test_every_page_can_be_reached_from_the_index_and_the_index_from_the_readme():
    linked = set(re.findall(r"\]\(([\w-]+\.md)", read("docs/index.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} == linked
    assert "docs/index.md" in read("README.md")


def test_the_readme_says_of_the_proof_what_its_page_says():
    found = dict(re.findall(r"^\| ([a-z ]+) \| ([\d,.]+)", read("docs/chaos.md"), re.MULTILINE))
    said = " ".join(read("README.md").split())
    assert f"{found['faults']} faults, from SIGKILL to a failover" in said
    assert f"while {found['jobs whose enqueue was confirmed']} jobs ran, and not one was lost" in said
    assert {found[name] for name in ("jobs lost", "double outcomes", "unexplained duplicates")} == {"0"}


def test_the_readme_says_of_other_queues_what_was_measured():
    drains = re.findall(r"(?m)^\| drain, async: to .*\*\*([\d.]+)\*\*", read("benchmarks/RESULTS.md"))
    graphile, python = (f"{round(float(ratio), 1):g} times as many" for ratio in drains)
    said = " ".join(read("README.md").split())
    assert f"{graphile} jobs a second as Graphile Worker at its best and {python} as the fastest Python peer" in said


def test_the_page_on_performance_says_of_the_soak_what_came_of_it():
    found = json.loads(read("benchmarks/soak.json"))["verdict"]
    said = read("docs/performance.md")
    assert f"| {found['jobs']:,}: lost {found['lost']}, run twice {found['ran_twice']} |" in said
    assert f"| {found['backlog_jobs_max']} jobs, {found['backlog_s_max']} s of work |" in said
    assert f"| {found['claim_ms_p50']:.1f} and {found['claim_ms_p99']:.1f} ms |" in said
    assert f"| {found['pickup_ms_p50']:.1f} and {found['pickup_ms_p99']:.0f} ms |" in said
    assert f"| {found['rss_mb_max']} MB, of which {found['rss_growth_mb']} MB grew |" in said
    assert f"| {found['late_pickup_ms_p50']:.0f} ms and {found['late_pickup_ms_p99'] / 1000:.0f} s |" in said
    assert found["broken"] == []


def test_the_page_on_brokers_says_of_the_proof_what_came_of_it():
    found = json.loads(read("chaos/brokered.json"))
    said = " ".join(read("docs/broker.md").split())
    assert f"CHAOS_SECONDS={found['seconds']:g} SEED={found['seed']}` ran [{found['jobs']:,} jobs" in said
    assert f"through {found['faults']} faults]" in said
    assert f"{found['twice']} were run to their end more than once" in said
    assert {found[name] for name in ("lost", "double_outcomes", "unexplained_duplicates")} == {0}


# -- what is named is real


def said_to_redrive(text: str) -> Iterator[tuple[str, str]]:
    """Each call of the command line in *text*: the command, and the rest of its line."""
    code = re.findall(r"(?ms)^ *```(?:console|bash|ini|dockerfile|yaml|text)\n(.*?)^ *```$", text)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    for part in code:
        joined = re.sub(r"\\\n\s*", "", part).replace('", "', " ")
        yield from re.findall(r"(?m)(?:^(?:\$ )?\s*|[/\"|&;(]\s*)redrive ([a-z]+)\b([^\n|;&)]*)", joined)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_flag_on_the_page_exists(name):
    context = click.Context(cli)
    for command, rest in said_to_redrive(read(name)):
        assert command in COMMANDS, f"{name}: redrive {command}"
        found = cli.get_command(context, command)
        if isinstance(found, click.Group):
            word = rest.split()[0] if rest.split() else ""
            if word not in found.commands and not word.startswith("-"):
                word = getattr(found, "otherwise", word)  # what is no command of the group is the argument of this one
            assert not word or word.startswith("-") or word in found.commands, f"{name}: redrive {command}{rest}"
            found = found.commands.get(word, found)
        known = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known | {"--help"}, f"{name}: redrive {command}{rest}"


def test_every_command_is_described():
    pages = "\n".join(page.read_text() for page in PAGES)
    assert [command for command in COMMANDS if f"redrive {command}" not in pages] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_on_the_page_exists(name):
    known = {f"REDRIVE_{field.name.upper()}" for field in fields(Settings)}
    known |= {"REDRIVE_APP", "REDRIVE_ONCE", "REDRIVE_LOG_LEVEL", *operators.VARIABLES.values()}
    assert set(re.findall(r"REDRIVE_[A-Z_]+\b", read(name).replace("REDRIVE_*", ""))) <= known


def settings_table() -> str:
    """The table of settings, from where they are defined."""
    module = ast.parse(Path(redrive.settings.__file__).read_text())
    body = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Settings").body
    said = {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    worker = cli.get_command(click.Context(cli), "worker")
    flags = {parameter.name: "`, `".join((*parameter.opts, *parameter.secondary_opts)) for parameter in worker.params}
    lines = ["| setting | variable | flag | default | what it is |", "|---|---|---|---|---|"]
    for field in fields(Settings):
        name = field.name
        default = shown(field.default)
        flag = f"`{flags[name]}`" if name in flags else ""  # what may be a secret has none, which others could read
        lines.append(f"| `{name}` | `REDRIVE_{name.upper()}` | {flag} | {default} | {said[name]} |")
    return "\n".join(lines)


def shown(default: object) -> str:
    """A default as a human writes it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, float):
        return "0" if not default else f"{default / 86_400:g} d" if default >= 86_400 else f"{default:g} s"
    return str(default) if default and not isinstance(default, tuple) else ""


def test_the_table_of_settings_is_the_settings():
    table = settings_table()
    assert table in read("docs/settings.md"), f"put this into docs/settings.md:\n\n{table}"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("docs/handlers.md", set(inspect.signature(Queue.handler).parameters) - {"self", "kind"}),
        ("docs/enqueue.md", {*Wishes.__annotations__, "key", "connection"}),
        *(
            ("docs/senders.md", set(inspect.signature(each).parameters) - {"rest"})
            for each in (Webhook, Delivery, Smtp, Email, Mail)
        ),
    ],
)
def test_every_option_has_its_row(name, options):
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*)", read(name), re.MULTILINE)
    rows = {option for cell in cells for option in re.findall(r"\w+", cell)}
    assert options <= rows, sorted(options - rows)


ARTICLE = [
    "FOR UPDATE SKIP LOCKED LIMIT 1 ) UPDATE jobs j SET status = 'running', attempts = j.attempts + 1,",
    """INSERT INTO jobs (kind, payload, max_attempts) VALUES ('send_email', '{"to":"user@example.com"}'::jsonb, 5);""",
    "WHERE status = 'running' AND locked_at < NOW() - INTERVAL '10 minutes';",
    "WHERE status = 'dead' AND updated_at > NOW() - INTERVAL '24 hours' GROUP BY kind ORDER BY dead_count DESC;",
    "SET status = 'pending', attempts = 0, run_at = NOW(), last_error = NULL, updated_at = NOW() WHERE status = 'dead'",
    "DELETE FROM jobs WHERE status = 'succeeded' AND updated_at < NOW() - INTERVAL '7 days';",
    "UPDATE jobs SET status='succeeded', updated_at=NOW() WHERE id=",
    "SET lock_timeout = '2s'",
]


@pytest.mark.parametrize("statement", ARTICLE)
def test_the_articles_own_statements_are_run_word_for_word(statement):
    sql = " ".join(block.text for block in blocks(DOCS / "tutorial.md") if block.language == "sql")
    assert statement in " ".join(sql.split())


# -- the rights are enough, and no more


@pytest.fixture
def roles(db: str, conn: psycopg.Connection, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The roles of the page, and the DSN of each by its name."""
    with Session(db, tmp_path) as session:
        session.run([block for block in blocks(DOCS / "migrations.md") if block.text.startswith("CREATE ROLE")])
        for role in session.roles.values():
            conn.execute(f"ALTER ROLE {role} PASSWORD 'secret'")
        yield lambda name: make_conninfo(db, user=session.roles[name], password="secret")


def test_each_role_can_do_what_its_page_says(roles, conn):
    web = Queue(roles("shop_web"))
    jobs = [web.enqueue("send_email", {"n": n}, key=f"key:{n % 2}") for n in range(3)]
    assert web.enqueue_many("send_email", [{}, {}]) == 2
    with psycopg.connect(roles("shop_web")) as app:
        app.execute("SELECT redrive.enqueue('export', key => 'key:9')")
    assert web.get(jobs[0].id).status == "pending"

    oncall = Queue(roles("shop_oncall"))
    insert(conn, "export", status="dead", attempts=5)
    assert oncall.requeue(Ended(kind="export"))
    insert(conn, "export", status="dead", attempts=5)
    over_time = oncall.requeues.start(Ended(kind="export"), rate=10)
    assert oncall.cancel(jobs[1].id) == {jobs[1].id: "pending"}
    oncall.breakers.open("fax")
    assert oncall.breakers.close("fax", at_once=True).state == "closed"

    insert(conn, "old", status="succeeded", created_at="2020-01-01", updated_at="2020-01-01")
    insert(conn, "late", expires_at="2020-01-01")
    insert(conn, "export", status="running", locked_at="2020-01-01", locked_by="gone")
    worker = Queue(roles("shop_worker"), lease=1, archive=True)
    troubles: list[TickFailed] = []

    @worker.handler("send_email")
    def send_email(payload, job):
        job.progress(payload)
        worker.enqueue("export")
        if "n" not in payload:
            raise OSError("once")

    @worker.handler("export")
    def export():
        return "done"

    @worker.handler("webhook", target=lambda _payload: "host", backoff=lambda _attempt: 0)
    def webhook():
        raise ConnectionError("down")

    worker.enqueue("webhook")
    end = subscribe(troubles.append, TickFailed)
    with Inside(worker):
        wait_for(lambda: [one.state for one in oncall.breakers.list("webhook")] == ["open"], 30)
        wait_for(lambda: conn.execute("SELECT count(*) FROM redrive.jobs_archive").fetchone() == (1,), 30)
        wait_for(
            lambda: conn.execute("SELECT count(*) FROM redrive.jobs WHERE locked_by = 'gone'").fetchone() == (0,), 30
        )
        wait_for(
            lambda: conn.execute("SELECT status FROM redrive.jobs WHERE kind = 'late'").fetchone() == ("dead",), 30
        )
        wait_for(lambda: oncall.requeues.get(over_time.id).status == "done", 30)
    end()
    assert troubles == []
    assert conn.execute("SELECT count(*) FROM redrive.failures WHERE message = 'once'").fetchone() == (2,)
    assert conn.execute("SELECT count(*) FROM redrive.workers").fetchone() == (0,), "it said goodbye"

    with psycopg.connect(roles("shop_monitor"), autocommit=True) as monitor:
        assert monitor.execute("SELECT count(*) > 0 FROM redrive.jobs").fetchone() == (True,)
    for queue in (web, oncall, worker):
        queue.close()


def test_a_producer_can_enqueue_in_every_way_and_nothing_else(roles, conn):
    queue = Queue(roles("shop_producer"))
    first = queue.enqueue("mail", {"card": "4111"}, key="k")
    assert queue.enqueue("mail", key="k") == replace(first, created=False)
    assert queue.enqueue_many("mail", [{}, {}]) == 2
    assert queue.enqueue_many("mail", [{}, {}], key=lambda _: "k") == 0
    with psycopg.connect(roles("shop_producer"), autocommit=True) as producer:
        assert producer.execute("SELECT redrive.enqueue('mail', key => 'k')").fetchone() == (first.id,)
        producer.execute("INSERT INTO redrive.jobs (kind, payload) VALUES ('mail', '{}')")
    for forbidden in (
        lambda: queue.get(first.id),
        lambda: queue.cancel(first.id),
        lambda: queue.requeue(Ended()),
        lambda: queue.ask(list_jobs("redrive")),
        lambda: queue.ask(workers("redrive")),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            forbidden()
    queue.close()
    assert conn.execute("SELECT count(*) FROM redrive.jobs WHERE status = 'pending'").fetchone() == (4,)
    dsn = roles("shop_producer")
    [grant] = [
        each.text for each in blocks(DOCS / "migrations.md") if "redrive.migrations TO shop_producer" in each.text
    ]
    conn.execute(grant.replace("shop_producer", conninfo_to_dict(dsn)["user"]))
    assert shell.redrive(dsn, "enqueue", "mail").output == "job 5 enqueued\n"


@pytest.mark.parametrize("words", [("jobs", "--json"), ("dead",), ("show", "1"), ("workers",), ("jobs", "--counts")])
def test_who_only_looks_can_see_everything_at_the_shell(roles, conn, words):
    insert(conn, "mail", status="dead", id=1)
    assert "mail" in shell.redrive(roles("shop_monitor"), *words).output or words == ("workers",)


@pytest.mark.parametrize("words", [("requeue", "1"), ("cancel", "2"), ("enqueue", "mail"), ("prune",)])
def test_who_only_looks_is_refused_in_a_line_and_changes_nothing(roles, conn, words):
    insert(conn, "mail", status="dead", id=1, updated_at="2020-01-01", created_at="2020-01-01")
    insert(conn, "mail", id=2)
    before = conn.execute("SELECT * FROM redrive.jobs ORDER BY id").fetchall()
    assert "permission denied" in shell.complaint(shell.redrive(roles("shop_monitor"), *words, code=1))
    assert conn.execute("SELECT * FROM redrive.jobs ORDER BY id").fetchall() == before


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("shop_producer", "SELECT payload FROM redrive.jobs"),
        ("shop_producer", "INSERT INTO redrive.jobs (kind, status) VALUES ('mail', 'succeeded')"),
        ("shop_producer", "INSERT INTO redrive.jobs (kind, locked_by, claims) VALUES ('mail', 'vm:1:abcdef', 1)"),
        ("shop_web", "INSERT INTO redrive.jobs (kind, status) VALUES ('mail', 'succeeded')"),
        ("shop_producer", "UPDATE redrive.jobs SET status = 'pending'"),
        ("shop_producer", "DELETE FROM redrive.jobs"),
        ("shop_producer", "TRUNCATE redrive.jobs"),
        ("shop_producer", "SELECT id FROM redrive.jobs FOR UPDATE"),
        ("shop_monitor", "INSERT INTO redrive.jobs (kind) VALUES ('mail')"),
        ("shop_monitor", "SELECT redrive.enqueue('mail')"),
        ("shop_web", "UPDATE redrive.jobs SET status = 'dead'"),
        ("shop_web", "SELECT * FROM redrive.failures"),
        ("shop_oncall", "DELETE FROM redrive.jobs"),
        ("shop_monitor", "UPDATE redrive.jobs SET status = 'dead'"),
        ("shop_worker", "DROP TABLE redrive.jobs"),
        ("shop_worker", "INSERT INTO redrive.migrations (version, name) VALUES (9, 'x')"),
    ],
)
def test_no_role_can_do_more(roles, role, statement):
    with psycopg.connect(roles(role)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)
