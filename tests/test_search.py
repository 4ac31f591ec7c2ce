"""What people type into the search box, and how far an answer comes in its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from redrive import Queue, search
from redrive.errors import InvalidOption
from redrive.statements import run


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def find(queue, text, *, sensitive=(), **more):
    finder = search.Finder(queue.schema, queue.ask)
    found = finder.page(search.read(text, sensitive=sensitive), datetime.now(UTC), **more)
    return [row.id for row in found.rows]


def test_qualifiers_are_read_and_must_all_match(queue):
    first = queue.enqueue("send_email", {"to": "ann@example.com", "user": {"id": 7}}, lane="acme", key="k 1").id
    queue.enqueue("send_email", {"to": "bob@example.com"}, delay=60)
    other = queue.enqueue("export pdf", {"to": "ann@example.com"}).id
    assert find(queue, "kind:send_email payload.to:ann@example.com") == [first]
    assert find(queue, 'kind:"export pdf"') == [other]
    assert find(queue, "payload.to:ann@*") == [other, first]
    assert find(queue, "payload.user.id:7 status:due lane:acme") == [first]
    assert find(queue, '"k 1"') == [first]
    assert find(queue, "-kind:send_email") == [other]
    assert find(queue, "status:scheduled kind:send_email,nothing") == [other - 1]
    assert find(queue, f"{first}") == [first] == find(queue, f"id:{first},99999")
    assert find(queue, 'lane:"" status:pending') == [other, other - 1]
    assert find(queue, "older:1h") == [] != find(queue, "newer:1h")


def test_a_percent_sign_or_an_underscore_stands_for_itself(queue, conn):
    made = queue.enqueue("mail", {"to": "a_b%c"}).id
    queue.enqueue("mail", {"to": "aXbYc"})
    assert find(queue, "payload.to:a_b%c") == [made]
    conn.execute("update redrive.jobs set status = 'dead', last_error = 'disk 100%% full' where id = %s", (made,))
    assert find(queue, 'status:dead error:"100% FULL"') == [made]
    assert find(queue, "status:dead error:1_0") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("stauts:dead", "did you mean status:?"),
        ("status:daed", "did you mean dead?"),
        ("older:tomorrow", "give a span like 90s, 2h, 7d"),
        ("since:2030-01-31T09:00", "say in which zone"),
        ("older:9999999999d", "before all time"),
        ("id:x", "an id is a whole number"),
        ("batch:x", "the number of a batch is a whole number"),
        ("-status:dead", "only kinds can be left out"),
        ("payload.password:x", "is masked, and not searched either"),
        ("metadata.auth.apiKey:x", "is masked, and not searched either"),
        ("a\0b", "can't be stored"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(text, why):
    with pytest.raises(InvalidOption, match=r"^[^\n]+$") as caught:
        search.read(text)
    assert why in str(caught.value)


def test_the_payload_of_a_sensitive_kind_is_not_searched(queue):
    made = queue.enqueue("welcome", {"to": "ann"}).id
    assert find(queue, "payload.to:ann") == [made]
    assert find(queue, "payload.to:ann", sensitive=["welcome"]) == []


def test_pages_go_from_the_newest_to_the_oldest_and_miss_none(queue):
    queue.enqueue_many("mail", [{"n": number} for number in range(25)])
    finder = search.Finder(queue.schema, queue.ask)
    seen, after = [], None
    while True:
        found = finder.page(search.read("kind:mail"), datetime.now(UTC), after=after, limit=10)
        seen += [row.payload["n"] for row in found.rows]
        if (after := found.after) is None:
            break
    assert seen == list(range(24, -1, -1))


def test_jobs_that_wait_come_in_the_order_in_which_they_are_taken(queue, conn):
    queue.enqueue_many("mail", [{"n": number} for number in range(12)])
    first = queue.enqueue("mail", {"n": -1}, priority=0).id
    conn.execute("insert into redrive.jobs (kind, run_at) values ('mail', 'infinity'), ('mail', '-infinity')")
    finder = search.Finder(queue.schema, queue.ask)
    seen, after = [], None
    while True:
        found = finder.page(search.read("status:pending"), datetime.now(UTC), after=after, limit=5)
        seen += [row.id for row in found.rows]
        if (after := found.after) is None:
            break
    assert seen == [first, 15, *range(1, 13), 14]
    for wrong in ("x", "[1]", '["mail", "x", "", "", 1]'):
        with pytest.raises(InvalidOption, match="it is where a page of the same search ended"):
            finder.page(search.read("status:due"), datetime.now(UTC), after=wrong)


def test_a_search_that_no_index_serves_stops_at_its_time_and_goes_on_from_there_op_01(queue, conn):
    """OP-01."""
    conn.execute(
        "insert into redrive.jobs (kind) "
        "select case n when 1 then 'rare' else 'mail' end from generate_series(1, 9000) n"
    )
    now = [0.0]

    def ask(statement):
        now[0] += 0.3  # as if each piece took long
        return run(conn, statement)

    finder = search.Finder(queue.schema, ask, clock=lambda: now[0])
    found = finder.page(search.read("kind:rare"), datetime.now(UTC))
    assert found.rows == []
    assert not found.searched
    assert (found.upto, found.after) == (5001, "5001")
    pages = 1
    while found.after is not None:
        found = finder.page(search.read("kind:rare"), datetime.now(UTC), after=found.after)
        pages += 1
    assert [row.id for row in found.rows] == [1]
    assert pages > 2


@pytest.mark.parametrize("status", ["dead", "failed", "running"])
def test_ended_and_running_jobs_are_found_by_their_index(queue, conn, status):
    conn.execute(
        "insert into redrive.jobs (kind, status) select 'mail', case when n %% 2000 = 0 then %s else 'succeeded' end "
        "from generate_series(1, 20000) n",
        (status,),
    )
    conn.execute("analyze redrive.jobs")
    statements = []

    def ask(statement):
        statements.append(statement)
        return run(conn, statement)

    search.Finder(queue.schema, ask).page(search.read(f"status:{status}"), datetime.now(UTC))
    plan = "\n".join(
        row[0] for row in conn.execute("explain " + statements[1].sql.decode(), statements[1].params).fetchall()
    )
    assert {"dead": "jobs_ended_idx", "failed": "jobs_ended_idx", "running": "jobs_running_idx"}[status] in plan
    assert "Seq Scan" not in plan


def test_what_the_search_box_says_can_be_searched_for_can_be():
    values = {
        "status": "dead",
        "id": "7",
        "batch": "7",
        "older": "2h",
        "newer": "2h",
        "since": "7d",
        "until": "2030-01-31T09:00Z",
    }
    for name in search.QUALIFIERS:
        word = f"{name}to:x" if name.endswith(".") else f"{name}:{values.get(name, 'x')}"
        assert not search.read(word).plain
    assert search.read("older:2h").older == timedelta(hours=2)
