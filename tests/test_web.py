"""The desk through its front door: who gets in, what they see, what they can do."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from html import unescape

import psycopg
import pytest
from starlette.testclient import TestClient

from adopted import adopt, insert, make
from redrive import Queue, curtain
from redrive.errors import InvalidOption
from redrive.web import Operator, as_wsgi, desk
from redrive.web.operators import Tries
from redrive.web.reader import Shared
from redrive.web.sessions import Sessions

PASSWORD, LOOKS = "correct horse", "only looking"
ENTRANCE = {"/login", "/logout"}
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\x1b[31m\u202e'


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def client(pages, *, url="http://localhost", address="127.0.0.1", **more):
    return TestClient(pages, base_url=url, client=(address, 50_000), follow_redirects=False, **more)


@pytest.fixture
def page(queue):
    """A client on the desk of the machine itself, without a password."""
    return client(desk(queue, local=True))


def token(answer):
    return re.search(r'name="token" value="([0-9a-f]+)"', answer.text)[1]


def post(browser, to, /, *, seen="/kinds", **fields):
    """Send a form as a browser does, with the token of a page that was seen before."""
    fields.setdefault("token", token(browser.get(seen)))
    return browser.post(to, data=fields, headers={"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"})


def sign_in(browser, password=PASSWORD, **fields):
    answer = browser.get("/login")
    return browser.post(
        "/login", data={"token": token(answer), "password": password, **fields}, headers={"Origin": "http://localhost"}
    )


def text(answer):
    return unescape(re.sub(r"<[^>]+>", " ", answer.text))


# -- closed by default


def test_nothing_is_open_unless_somebody_opened_it(queue):
    with pytest.raises(InvalidOption, match="the desk would be open to anybody"):
        desk(queue)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"password": "short"}, "has 5 characters: give at least 8"),
        ({"password": PASSWORD, "look_password": PASSWORD}, "are the same"),
        ({"password": PASSWORD, "user": lambda _: None}, "give one of them"),
    ],
)
def test_a_weak_way_in_is_refused(queue, given, why):
    with pytest.raises(InvalidOption, match=why):
        desk(queue, **given)


def test_an_unauthenticated_request_to_every_route_is_refused_op_05(queue):
    """OP-05: the route table itself is walked, so a new page can't be forgotten."""
    pages = desk(queue, password=PASSWORD)
    browser = client(pages)
    own_token = token(browser.get("/login"))
    walked = 0
    for route in pages.app.routes:
        path = route.path.replace("{id}", "1")
        if path in ("/login", "/static"):
            continue
        for method in ("GET", "POST", "HEAD"):
            headers = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
            answer = browser.request(method, path, headers=headers, data={"token": own_token})
            assert answer.status_code == 401, (method, path)
            assert "jobs" not in text(answer).lower()
            walked += 1
    assert walked > 40
    assert browser.get("/nothing/such").status_code == 401
    assert browser.get("/static/desk.css").status_code == 200
    assert browser.get("/static/../app.py").status_code in (401, 404)
    assert browser.get("/static/%2e%2e/app.py").status_code in (401, 404)


def actions(pages):
    """The routes to which forms are sent."""
    paths = [route.path for route in pages.app.routes if "POST" in (getattr(route, "methods", None) or ())]
    assert len(paths) > 7
    return paths


def test_every_form_is_refused_without_its_token_or_from_elsewhere_op_05(queue):
    """OP-05."""
    pages = desk(queue, local=True)
    browser = client(pages)
    good = token(browser.get("/kinds"))
    for path in actions(pages):
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        for headers, said in [
            (own, {"token": "0" * 64}),
            (own, {}),
            ({}, {"token": good}),
            ({"Origin": "http://evil.example"}, {"token": good}),
            ({"Origin": "null"}, {"token": good}),
            ({"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, {"token": good}),
            ({"Sec-Fetch-Site": "none"}, {"token": good}),
        ]:
            answer = browser.post(path, data={"kind": "mail", **said}, headers=headers)
            assert answer.status_code == 403, (path, headers, said)
    assert queue.kinds.list() == []


def test_a_desk_without_a_password_answers_to_no_other_name(queue):
    """A page of another site whose name was bound anew to 127.0.0.1 gets nothing."""
    pages = desk(queue, local=True)
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""):
        assert client(pages).get("/", headers={"Host": host}).status_code == 421, host
    for host in ("localhost:8100", "127.0.0.1:1", "[::1]:8100", "app.localhost"):
        assert client(pages).get("/", headers={"Host": host}).status_code == 200, host
    assert client(pages, address="::1").get("/").status_code == 200
    for address in ("203.0.113.9", "10.0.0.7", "testclient"):  # a Host is only what somebody says
        assert client(pages, address=address).get("/").status_code == 421, address
    proxied = client(pages).get("/", headers={"X-Forwarded-For": "203.0.113.9"})
    assert proxied.status_code == 421


def test_named_hosts_are_the_only_ones(queue):
    pages = desk(queue, password=PASSWORD, hosts=["desk.example"])
    assert client(pages, url="http://desk.example").get("/login").status_code == 200
    assert client(pages, url="http://other.example").get("/login").status_code == 421


def test_headers_leave_no_room_for_a_strangers_script(page):
    for path in ("/", "/jobs", "/static/desk.css", "/nothing"):
        headers = page.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
    for path in ("/", "/jobs", "/kinds", "/workers", "/schedules", "/dead", "/audit"):
        body = page.get(path).text
        assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:", body), path
        assert re.findall(r"<script[^>]*>(.*?)</script>", body, re.DOTALL) == [""], path


# -- signing in


def test_signing_in_and_out(queue):
    browser = client(desk(queue, password=PASSWORD, look_password=LOOKS))
    assert sign_in(browser, "wrong password").status_code == 401
    answer = sign_in(browser, name="Ann", onward="/jobs?q=status%3Adead")
    assert answer.headers["location"] == "/jobs?q=status%3Adead"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Ann (act)" in browser.get("/").text
    assert post(browser, "/logout").status_code == 303
    assert browser.get("/").status_code == 401


def test_over_tls_the_cookie_is_for_tls_alone(queue):
    browser = client(desk(queue, password=PASSWORD), url="https://desk.example")
    assert "Secure" in browser.get("/login").headers["set-cookie"]


@pytest.mark.parametrize(
    "onward", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_after_signing_in_one_stays_at_the_desk(queue, onward):
    browser = client(desk(queue, password=PASSWORD))
    assert sign_in(browser, onward=onward).headers["location"] == "/"


def test_who_may_look_may_not_act_op_05(queue):
    """OP-05: on none of the routes that change anything."""
    browser = client(desk(queue, password=PASSWORD, look_password=LOOKS))
    sign_in(browser, LOOKS)
    made = queue.enqueue("mail").id
    assert "You can look, and not act." in browser.get("/").text
    assert "<form" not in browser.get(f"/jobs/{made}").text.split("<main", 1)[1]
    for path in set(actions(browser.app)) - ENTRANCE:
        assert post(browser, path, do="cancel", id=made).status_code == 403, path
    assert queue.get(made).status == "pending"


def test_a_forged_or_old_cookie_is_nobodys(queue, monkeypatch):
    browser = client(desk(queue, password=PASSWORD))
    sign_in(browser)
    good = browser.cookies["redrive_desk"]
    others = Sessions({"act": "another password"}, "redrive desk redrive", queue.settings.database_url)
    for cookie in (others.write(others.new("x", "act")), good[:-1] + ("0" if good[-1] != "0" else "1"), "x.y", "."):
        browser.cookies.clear()
        browser.cookies.set("redrive_desk", cookie)
        assert browser.get("/").status_code == 401, cookie
    browser.cookies.clear()
    browser.cookies.set("redrive_desk", good)
    assert browser.get("/").status_code == 200
    later = time.time() + 13 * 3600
    monkeypatch.setattr("redrive.web.sessions.time.time", lambda: later)
    assert browser.get("/").status_code == 401


def test_another_process_with_the_same_password_knows_the_session(queue):
    browser, other = client(desk(queue, password=PASSWORD)), client(desk(queue, password=PASSWORD))
    sign_in(browser)
    other.cookies.set("redrive_desk", browser.cookies["redrive_desk"])
    assert other.get("/").status_code == 200


def test_a_form_of_one_process_is_taken_by_another(queue):
    browser, other = client(desk(queue, local=True)), client(desk(queue, local=True))
    good = token(browser.get("/kinds"))
    other.cookies.set("redrive_desk", browser.cookies["redrive_desk"])
    answer = other.post("/kinds/pause", data={"kind": "mail", "token": good}, headers={"Origin": "http://localhost"})
    assert answer.status_code == 303


def test_guessing_passwords_is_slowed_down(queue):
    browser = client(desk(queue, password=PASSWORD))
    assert [sign_in(browser, "wrong password").status_code for _ in range(7)] == [401] * 5 + [429] * 2
    assert sign_in(browser).status_code == 429  # the right one as well: nothing is told meanwhile


def test_prometheus_brings_its_password_with_each_request(queue):
    pytest.importorskip("prometheus_client")
    queue.enqueue("mail")
    browser = client(desk(queue, password=PASSWORD, look_password=LOOKS))
    for password in (PASSWORD, LOOKS):
        answer = browser.get("/metrics", auth=("prometheus", password))
        assert answer.status_code == 200
        assert re.search(r'^redrive_\w+{kind="mail".*} 1', answer.text, re.MULTILINE)
    assert browser.get("/jobs", auth=("prometheus", PASSWORD)).status_code == 401  # people sign in
    assert browser.post("/metrics", auth=("prometheus", PASSWORD)).status_code in (403, 405)
    for _ in range(6):
        assert browser.get("/metrics", auth=("prometheus", "wrong password")).status_code == 401
    assert browser.get("/metrics", auth=("prometheus", PASSWORD)).status_code == 401  # it has to wait, as people do
    assert browser.get("/metrics", headers={"Authorization": "Basic nonsense"}).status_code == 401


def test_a_wait_is_over_after_a_minute():
    now = [0.0]
    tries = Tries(clock=lambda: now[0])
    for _ in range(5):
        tries.failed("203.0.113.9")
    assert tries.wait("203.0.113.9") == 60
    assert tries.wait("203.0.113.10") == 0
    now[0] = 61
    assert tries.wait("203.0.113.9") == 0


def test_an_applications_own_users(queue):
    async def who(request):
        name = request.headers.get("x-user")
        return Operator(name, acts=name == "ada") if name else None

    browser = client(desk(queue, user=who))
    assert browser.get("/").status_code == 401
    assert "bob" in browser.get("/", headers={"x-user": "bob"}).text
    assert "You can look, and not act." in browser.get("/", headers={"x-user": "bob"}).text
    broken = client(desk(queue, user=lambda _: 1), raise_server_exceptions=False)
    assert broken.get("/").status_code == 500  # True, 1 and the like are no operator


# -- pages


def test_every_page_of_an_empty_installation_says_so(page):
    assert "no worker is alive" in text(page.get("/"))
    for path, said in [
        ("/dead", "Nothing is dead."),
        ("/jobs", "No job matches."),
        ("/kinds", "No kind has jobs"),
        ("/batches", "There is no batch."),
        ("/batches", "Nobody subscribes to a topic."),
        ("/workers", "No worker has given a sign of life"),
        ("/schedules", "There is no schedule."),
        ("/audit", "Nobody has done anything yet."),
    ]:
        answer = page.get(path)
        assert answer.status_code == 200
        assert said in text(answer), path
    for path in ("/jobs/1", "/jobs/x", "/jobs/99999999999999999999", "/schedules/one?name=x", "/nothing"):
        assert page.get(path).status_code == 404, path


def test_what_strangers_wrote_is_inert_everywhere_op_05(queue, conn, page):
    conn.execute(
        "insert into redrive.jobs (kind, payload, status, last_error, key, lane, attempts) values "
        "(%(x)s, jsonb_build_object(%(x)s::text, %(x)s::text, 'link', 'javascript:alert(1)'), "
        "'dead', %(x)s, %(x)s, %(x)s, 3)",
        {"x": HOSTILE},
    )
    conn.execute(
        "insert into redrive.failures "
        "(job_id, kind, claim, attempt, outcome, failed_at, worker, error_type, message, traceback) "
        "values (1, %(x)s, 1, 1, 'dead', now(), %(x)s, %(x)s, %(x)s, %(x)s)",
        {"x": HOSTILE},
    )
    queue.kinds.pause("mail", by=HOSTILE, reason=HOSTILE)
    queue.breakers.open(HOSTILE, HOSTILE, by=HOSTILE, reason=HOSTILE)
    [group] = queue.groups.list()
    queue.requeues.start(group.which, by=HOSTILE, reason=HOSTILE)
    conn.execute("insert into redrive.deploys values (%(x)s, now() - interval '9 min')", {"x": HOSTILE})
    conn.execute(
        "insert into redrive.workers"
        " (name, host, pid, version, app_version, kinds, concurrency, lease, heartbeat_at, problem)"
        " values (%(x)s, %(x)s, 1, %(x)s, %(x)s, array[%(x)s], 1, '1 hour', now(), %(x)s)",
        {"x": HOSTILE},
    )
    queue.schedules.add("x", "mail", every=60)
    with queue.batches.open(HOSTILE, name=HOSTILE) as batch:
        batch.enqueue("mail")
    queue.topics.add("order.paid", HOSTILE, by=HOSTILE)
    conn.execute("update redrive.schedules set name = %(x)s, kind = %(x)s, problem = %(x)s", {"x": HOSTILE})
    params = {"q": HOSTILE.replace('"', "'")}
    paths = ("/", "/dead", "/jobs", "/jobs/1", "/kinds", "/batches", "/workers", "/schedules")
    answers = [page.get(path) for path in paths]
    answers += [page.get("/audit"), page.get("/dead/group", params={"name": f"{group.kind}:{group.key}"})]
    answers += [page.get("/jobs", params=params), page.get("/schedules/one", params={"name": HOSTILE})]
    answers += [page.get("/kinds", params={"kind": HOSTILE}), page.get("/jobs/confirm?do=requeue&id=1")]
    for answer in answers:
        body = re.sub(r' value="[^"]*"', "", answer.text)  # what a form brings back is as it was, and quoted
        assert answer.status_code in (200, 400), answer.url
        assert "<script>alert" not in body
        assert "<img" not in body
        assert "\x1b" not in body
        assert "\u202e" not in body
        assert not re.search(r"(href|src|action)=.?javascript:", body)
    assert "&lt;script&gt;" in answers[0].text


def test_secrets_are_masked_wherever_they_are_shown_op_04(queue, conn, page):
    """OP-04."""
    payload = {"password": "hunter2", "to": "ann", "headers": {"Authorization": "Bearer hunter2"}}
    made = queue.enqueue("mail", payload, metadata={"api_key": "hunter2"}).id
    conn.execute(
        "update redrive.jobs set status = 'dead', last_error = 'postgresql://app:hunter2@db/x: password=hunter2', "
        'result = \'{"token": "hunter2"}\', progress = \'{"token": "hunter2"}\', fingerprint = \'f\' where id = %s',
        (made,),
    )
    conn.execute(
        "insert into redrive.failures "
        "(job_id, kind, claim, attempt, outcome, failed_at, error_type, message, traceback, fingerprint) values "
        "(%s, 'mail', 1, 1, 'dead', now(), 'E', 'password=hunter2', 'postgresql://app:hunter2@db/x', 'f')",
        (made,),
    )
    queue.requeues.edit(made, payload, send=False, by="ann")
    paths = ["/", "/dead", "/dead/group?name=mail:f", "/jobs", f"/jobs/{made}", f"/jobs/confirm?do=requeue&id={made}"]
    for path in (*paths, "/audit"):
        answer = page.get(path)
        assert (answer.status_code, "hunter2" in answer.text) == (200, False), path
    assert page.get(f"/jobs/{made}").text.count("***") > 5


def test_a_sensitive_kind_shows_nothing_of_its_payload(db):
    queue = Queue(db)

    @queue.handler("diagnosis", sensitive=True)
    def diagnosis(payload): ...

    made = queue.enqueue("diagnosis", {"finding": "benign"}).id
    browser = client(desk(queue, local=True))
    assert "benign" not in browser.get("/jobs").text + browser.get(f"/jobs/{made}").text
    queue.close()


def test_a_jobs_page_tells_its_story_and_offers_what_applies(queue, conn, page):
    made = queue.enqueue("mail", {"to": "ann"}, max_attempts=2).id
    assert "Cancel" in text(page.get(f"/jobs/{made}")).split("Its story")[0]
    conn.execute("update redrive.jobs set status = 'dead', attempts = 2, last_error = 'boom' where id = %s", (made,))
    for attempt, outcome in ((1, "retried"), (2, "dead")):
        conn.execute(
            "insert into redrive.failures "
            "(job_id, kind, claim, attempt, outcome, failed_at, duration, error_type, message, traceback) "
            "values (%s, 'mail', %s, %s, %s, now() + make_interval(secs => %s), 0.5, 'ValueError', 'boom', "
            "'Traceback: here')",
            (made, attempt, attempt, outcome, attempt * 10),
        )
    answer = page.get(f"/jobs/{made}")
    said = text(answer)
    assert "Send back" in said
    assert "Cancel" not in said
    assert re.search(r"waited\s+9\.\d s", said)
    assert "dead: ValueError" in said
    assert "Traceback: here" in said
    assert '<svg class="timeline"' in answer.text
    conn.execute("update redrive.jobs set status = 'succeeded' where id = %s", (made,))
    assert "<form" not in page.get(f"/jobs/{made}").text.split("<main", 1)[1]
    conn.execute("delete from redrive.jobs")
    assert "gone from the table" in text(page.get(f"/jobs/{made}"))


def test_of_a_long_history_the_newest_part_is_shown(queue, conn, page):
    made = queue.enqueue("mail").id
    conn.execute(
        "insert into redrive.failures "
        "(job_id, kind, claim, attempt, outcome, failed_at, duration, error_type, message) "
        "select %s, 'mail', n, n, 'retried', now() + n * interval '1 min', 0.1, 'ValueError', 'boom ' || n || '.' "
        "from generate_series(1, 150) n",
        (made,),
    )
    said = text(page.get(f"/jobs/{made}"))
    assert "boom 150." in said
    assert "boom 51." in said
    assert "boom 50." not in said
    assert "earlier ones are left out" in said
    assert not re.search(r"waited\s+5\d min", said)  # what is left out was no waiting


def test_times_beyond_python_are_shown(conn, page):
    conn.execute(
        "insert into redrive.jobs (kind, run_at, expires_at, created_at) "
        "values ('mail', 'infinity', 'infinity', '-infinity')"
    )
    for path in ("/", "/jobs", "/jobs/1", "/kinds"):
        assert page.get(path).status_code == 200, path


def test_search_by_address_and_its_errors(queue, page):
    queue.enqueue("mail", {"to": "ann@example.com"})
    queue.enqueue("mail", {"to": "bob@example.com"})
    assert "1 shown, that is all" in text(page.get("/jobs", params={"q": "payload.to:ann@example.com"}))
    answer = page.get("/jobs", params={"q": "stauts:dead"})
    assert answer.status_code == 400
    assert "did you mean status:?" in text(answer)
    assert page.get("/jobs?from=x").status_code == 400


# -- actions


def test_dead_jobs_are_sent_back_once_they_were_seen(queue, conn, page):
    """OP-03: what is meant is shown with its number first, and moved by the form that follows."""
    ids = [queue.enqueue("mail").id for _ in range(3)]
    conn.execute("update redrive.jobs set status = 'dead', last_error = 'boom' where id < %s", (ids[2],))
    seen = page.get("/jobs/confirm", params={"do": "requeue", "id": ids})
    assert "Send back 2 jobs?" in text(seen)
    assert "1 more are in another state" in text(seen)
    answer = post(page, "/jobs/act", do="requeue", id=ids[:2])
    assert answer.status_code == 303
    assert "2 jobs sent back." in text(page.get(answer.headers["location"]))
    assert {queue.get(each).status for each in ids} == {"pending"}


def test_all_that_match_are_meant_beyond_the_page(queue, conn, page):
    conn.execute("insert into redrive.jobs (kind, status) select 'mail', 'dead' from generate_series(1, 120)")
    conn.execute("insert into redrive.jobs (kind, status) select 'mail', 'succeeded' from generate_series(1, 10)")
    conn.execute("insert into redrive.jobs (kind, status) values ('other', 'dead')")
    assert "Send back 120 jobs?" in text(page.get("/jobs/confirm?do=requeue&all=1&q=kind:mail"))
    answer = post(page, "/jobs/act", do="requeue", all="1", q="kind:mail")
    assert "120 jobs sent back." in text(page.get(answer.headers["location"]))
    [[left]] = conn.execute("select count(*) from redrive.jobs where status = 'dead'").fetchall()
    assert left == 1


def test_more_than_one_is_sent_back_over_time_one_first(queue, conn, page):
    """OP-03: the workers do it, whoever asked; until then it can be stopped."""
    conn.execute(
        "insert into redrive.jobs (kind, status, last_error) select 'mail', 'dead', 'boom' from generate_series(1, 5)"
    )
    [group] = queue.groups.list()
    listed = page.get("/dead")
    assert "boom" in text(listed)
    name = f"{group.kind}:{group.key}"
    assert "Send back 5 jobs…" in text(page.get("/dead/group", params={"name": name}))
    assert "Send back 5 jobs?" in text(page.get("/jobs/confirm", params={"do": "requeue", "group": name}))
    answer = post(page, "/jobs/act", do="requeue", group=name, canary="1", rate="300/min", reason="mended")
    said = text(page.get(answer.headers["location"]))
    assert "5 jobs are being sent back: one first, and the others if it succeeds." in said
    assert "waits for a worker" in said
    [row] = queue.requeues.list()
    assert (row.canary, row.rate, row.matched, row.reason) == (True, 5.0, 5, "mended")
    answer = post(page, "/dead/stop", id=row.id)
    assert "the others stay dead" in text(page.get(answer.headers["location"]))
    assert queue.requeues.get(row.id).status == "stopped"
    assert "It had ended before: stopped." in text(page.get(post(page, "/dead/stop", id=row.id).headers["location"]))


def test_a_payload_is_changed_before_its_job_is_sent_back(queue, conn, page):
    """What it was is kept in the audit."""
    first, second = (
        queue.enqueue("mail", {"to": "nan@example.com"}).id,
        queue.enqueue("mail", {"to": "x", "token": "t"}).id,
    )
    conn.execute("update redrive.jobs set status = 'dead'")
    assert "<textarea" in page.get(f"/jobs/{first}").text
    post(page, "/jobs/edit", id=first, payload='{"to": "ann@example.com"}', send="1", reason="a typing error")
    assert (queue.get(first).payload, queue.get(first).status) == ({"to": "ann@example.com"}, "pending")
    said = text(page.get(f"/jobs/{first}"))
    assert "a typing error" in said
    assert "nan@example.com" in said
    shown = page.get(f"/jobs/{second}")
    assert "<textarea" not in shown.text  # a part is masked, and would be lost
    post(page, "/jobs/edit", id=second, path="to", value="ann@example.com", send="0")
    assert (queue.get(second).payload, queue.get(second).status) == ({"to": "ann@example.com", "token": "t"}, "dead")
    for fields, why in [
        ({"payload": "{"}, "the payload is no JSON"),
        ({"path": "no.where", "value": "1"}, "leads nowhere"),
    ]:
        answer = post(page, "/jobs/edit", id=second, **fields)
        assert answer.status_code == 400
        assert why in text(answer)
    changed = post(page, "/jobs/edit", id=first, payload="{}", send="1")
    assert "Its state had changed" in text(page.get(changed.headers["location"]))


def test_the_audit_tells_who_did_what_and_why(queue, conn, page):
    made = queue.enqueue("mail").id
    conn.execute("update redrive.jobs set status = 'dead'")
    post(page, "/jobs/act", do="requeue", id=made, reason="mended")
    queue.kinds.pause("mail", by="bob", reason="holiday")
    said = text(page.get("/audit"))
    assert "mended" in said
    assert "holiday" in said
    assert "mended" not in text(page.get("/audit?by=bob"))
    assert "holiday" not in text(page.get("/audit?action=requeue"))


def test_two_operators_at_once_move_each_job_once(queue, conn):
    """OP-03."""
    made = queue.enqueue("mail").id
    conn.execute("update redrive.jobs set status = 'dead' where id = %s", (made,))
    pages = desk(queue, local=True)
    ann, bob = client(pages), client(pages)
    for browser in (ann, bob):
        assert "Send back 1 job?" in text(browser.get(f"/jobs/confirm?do=requeue&id={made}"))
    first = post(ann, "/jobs/act", do="requeue", id=made)
    second = post(bob, "/jobs/act", do="requeue", id=made)
    assert "1 job sent back." in text(ann.get(first.headers["location"]))
    assert "0 jobs sent back; 1 left alone, their state had changed." in text(bob.get(second.headers["location"]))


def test_cancelling_says_by_whom_and_why(queue, page):
    made = queue.enqueue("mail").id
    answer = post(page, "/jobs/act", do="cancel", id=made, reason="the customer left", back="job")
    assert answer.headers["location"] == f"/jobs/{made}"
    job = queue.get(made)
    assert job.status == "failed"
    assert job.last_error == "cancelled: the customer left"
    [act] = queue.audit.list()
    assert (act.action, act.reason) == ("cancel", "the customer left")
    assert act.by


def test_a_search_that_a_filter_can_say_is_sent_back_as_one(queue, conn, page):
    conn.execute(
        "insert into redrive.jobs (kind, payload, status, last_error) "
        "select 'mail', jsonb_build_object('to', who), 'dead', what "
        "from (values ('ann', 'timed out'), ('bob', 'timed out'), ('ann', 'refused')) v(who, what)"
    )
    for query in (
        "kind:mail error:timed payload.to:ann",
        'error:timed payload.to:"an*"',
        "status:dead timed payload.to:ann",
    ):
        assert "Send back 1 job?" in text(
            page.get("/jobs/confirm", params={"do": "requeue", "all": "1", "q": query})
        ), query


def test_a_kind_is_paused_limited_and_resumed(queue, page):
    post(page, "/kinds/pause", kind="mail", reason="the provider is down", until="2h")
    [row] = queue.kinds.list()
    assert (row.kind, row.paused, row.paused_reason) == ("mail", True, "the provider is down")
    assert "the provider is down" in text(page.get("/kinds"))
    assert "paused" in text(page.get("/"))
    post(page, "/kinds/limit", kind="mail", running="2", rate="300/min", burst="10")
    [row] = queue.kinds.list()
    assert (row.running_most, row.rate, row.burst) == (2, 5.0, 10)
    post(page, "/kinds/resume", kind="mail")
    assert not queue.kinds.list()[0].paused
    for fields, why in [
        ({"running": "x"}, "give a whole number"),
        ({"rate": "fast"}, "give a rate like"),
        ({"burst": "3"}, "without a rate"),
    ]:
        answer = post(page, "/kinds/limit", kind="mail", **fields)
        assert answer.status_code == 400
        assert why in text(answer)


def test_what_waits_for_later_is_run_now(queue, conn, page):
    """After the fix nobody has to wait out an hour of back-off; the attempts stay as they are."""
    later, due = queue.enqueue("mail", delay=3600).id, queue.enqueue("mail").id
    conn.execute("update redrive.jobs set attempts = 3 where id = %s", (later,))
    assert "Run now" in text(page.get(f"/jobs/{later}"))
    assert "Run now" not in text(page.get(f"/jobs/{due}"))
    assert "Run now 1 job?" in text(page.get("/jobs/confirm?do=hurry&all=1&q=kind:mail"))
    answer = post(page, "/jobs/act", do="hurry", id=[later, due], reason="mended")
    assert "1 job due now; 1 left alone" in text(page.get(answer.headers["location"]))
    [[attempts, now_due]] = conn.execute("select attempts, run_at <= now() from redrive.jobs where id = %s", (later,))
    assert (attempts, now_due) == (3, True)
    [act] = queue.audit.list()
    assert (act.action, act.moved, act.reason) == ("run now", 1, "mended")


def test_what_a_breaker_holds_is_seen_and_let_go(queue, page):
    queue.breakers.open("mail", "acme", reason="the provider is down")
    assert "mail acme is held by hand, no job waits: the provider is down" in text(page.get("/"))
    assert "the provider is down" in text(page.get("/kinds"))
    queue.breakers.open("export")
    queue.kinds.limit("report", running=1)  # a kind that no breaker holds
    for kind in ("mail", "export"):
        queue.enqueue(kind)
    seen = " ".join(text(client(desk(queue, local=True)).get("/kinds")).split())
    assert re.search(r"mail held in part", seen)
    assert re.search(r"export held (?!in part)", seen)
    assert re.search(r"report active", seen)
    post(page, "/kinds/let-go", kind="mail", target="acme")
    assert [row.state for row in queue.breakers.list() if row.target] in ([], ["closing"])
    answer = post(page, "/kinds/let-go", kind="mail", target="nothing such")
    assert "Nothing of mail was held." in text(page.get(answer.headers["location"]))


def test_a_kind_is_held_and_let_go_by_hand(queue, page):
    form = text(page.get("/kinds?kind=mail"))  # there is nothing of it yet, and its outage has been announced
    assert "Hold mail" in form
    answer = post(page, "/kinds/hold", kind="mail", target="acme", hold="2h", reason="maintenance till noon")
    said = " ".join(text(page.get(answer.headers["location"])).split())
    assert "The jobs of mail acme are held, and one is sent as a probe in 2 h." in said
    assert re.search(r"by hand, by \w+", said) is None  # it has a probe: it ends by itself
    assert "maintenance till noon" in said
    answer = post(page, "/kinds/hold", kind="mail", reason="for ever")
    said = " ".join(text(page.get(answer.headers["location"])).split())
    assert "The jobs of mail are held, until somebody lets them go." in said
    assert re.search(r"by hand, by \w+, (now|.* ago)", said)
    [(acme, its_hold), (mail, its)] = sorted((row.target, row.by_hand) for row in queue.breakers.list())[::-1]
    assert (acme, its_hold, mail, its) == ("acme", False, "", True)
    assert {act.reason for act in queue.audit.list()} == {"maintenance till noon", "for ever"}
    answer = post(page, "/kinds/let-go", kind="mail", target="", at_once="1")
    assert "What waits of mail is let out, all at once." in text(page.get(answer.headers["location"]))
    assert [row.target for row in queue.breakers.list()] == ["acme"]
    assert "Hold *" not in text(page.get("/kinds?kind=*"))
    for odd in ("%00", "x" * 1001, "%ED%A0%80"):
        assert page.get(f"/kinds?kind={odd}").status_code in (200, 400), odd
    refused = post(page, "/kinds/hold", kind="mail", hold="soon")
    assert refused.status_code == 400
    assert "probe after" in text(refused)


def test_what_a_breaker_holds_is_not_told_twice(queue, conn, page):
    """Its jobs are late because of it, and what leads to the breaker leads to what can be done."""
    conn.execute("insert into redrive.jobs (kind, run_at) values ('mail', now() - interval '1 hour')")
    queue.breakers.open("mail", reason="maintenance")
    answer = page.get("/")
    assert "mail is held by hand, 1 job waits: maintenance" in text(answer)
    assert "the oldest job of kind mail" not in text(answer)
    assert 'href="/kinds?kind=mail#breakers"' in answer.text
    queue.breakers.close("mail", at_once=True)
    queue.breakers.open("mail", "acme")  # one target of many
    assert "the oldest job of kind mail" in text(client(desk(queue, local=True)).get("/"))


def test_what_is_found_leads_to_where_it_is_put_right(queue, conn, page):
    queue.kinds.pause("mail", by="bob")
    queue.schedules.add("nightly", "mail", every=60)
    conn.execute("update redrive.schedules set next_run_at = now() - interval '1 hour'")
    suspect = conn.execute(
        "insert into redrive.jobs (kind, alone, crashes) values ('hook', true, 1) returning id"
    ).fetchone()[0]
    body = page.get("/").text
    assert 'href="/kinds?kind=mail#change"' in body
    assert f'<a href="/jobs/{suspect}">show the job</a>' in body
    assert 'href="/schedules/one?name=nightly"' in body


def test_that_a_paused_kind_is_late_is_told_with_its_pause(queue, conn, page):
    conn.execute("insert into redrive.jobs (kind, run_at) values ('mail', now() - interval '1 hour')")
    queue.kinds.pause("mail", by="bob", reason="holiday")
    said = text(page.get("/"))
    assert "kind mail is paused by bob: holiday; the oldest job is due for 1 h" in said
    assert "the oldest job of kind mail" not in said


def test_batches_and_topics_are_seen(queue, conn, page):
    with queue.batches.open("report", name="July") as batch:
        made = [batch.enqueue("mail", {"n": number}).id for number in range(3)]
    conn.execute("update redrive.jobs set status = 'dead' where id = %s", (made[0],))
    queue.topics.add("order.paid", "mail", by="ada")
    queue.publish("user.left", {})
    answer = page.get("/batches")
    said = " ".join(text(answer).split())
    assert re.search(r"July (now|[\d.]+ \w+ ago) 3 0 0 1 report follows when all have ended", said)
    assert "order.paid mail active ada" in said
    assert "user.left is published, and nobody subscribes to it" in said
    assert f'href="/jobs?q=batch%3A{batch.id}"' in answer.text
    found = text(page.get("/jobs", params={"q": f"batch:{batch.id} status:dead"}))
    assert "1 shown, that is all" in found
    assert "Send back 1 job?" in text(page.get(f"/jobs/confirm?do=requeue&all=1&q=batch:{batch.id}"))
    assert re.search(rf"Batch\s+{batch.id}\b", text(page.get(f"/jobs/{made[1]}")))
    assert page.get("/jobs?q=batch:x").status_code == 400


def test_batches_that_a_role_may_not_read_hide_no_topics(db, conn):
    with role(conn, "t_desk_batchless", rights="select") as name:
        conn.execute(f"revoke select on redrive.batches from {name}")
        queue = Queue(psycopg.conninfo.make_conninfo(db, user=name, password="pw"))
        said = text(client(desk(queue, local=True)).get("/batches"))
        assert "batches: this role may not read it" in said
        assert "Nobody subscribes" in said
        queue.close()


def test_the_job_of_an_adopted_row_says_which(queue, page):
    row = {"adopted": {"adoption": 1, "table": "public.mail_jobs", "row": "5008"}}
    made = queue.enqueue("mail", metadata=row).id
    answer = page.get(f"/jobs/{made}")
    assert re.search(r"5008 of\s+public.mail_jobs", text(answer))
    assert "1 shown" in text(page.get("/jobs", params={"q": "metadata.adopted.table:public.mail_jobs"}))
    for odd in ({"adopted": "x"}, {"adopted": {"row": 1}}):
        assert page.get(f"/jobs/{queue.enqueue('mail', metadata=odd).id}").status_code == 200


def test_a_huge_payload_makes_no_huge_page(queue, conn, page):
    """A megabyte, read anew every five seconds, was of no use and took a phone minutes."""
    made = queue.enqueue("mail", {"begin": "b", "blob": "x" * 900_000, "to": "nan"}).id
    conn.execute(
        "update redrive.jobs set status = 'dead', last_error = %s where id = %s", ("boom " * 200_000 + "end", made)
    )
    for path in (f"/jobs/{made}", "/dead", "/jobs?q=status:dead", "/dead/group?name=" + queue.groups.list()[0].id):
        assert len(page.get(path).text) < 60_000, path
    shown = page.get(f"/jobs/{made}")
    assert "characters left out" in shown.text
    assert f"redrive show {made} --json" in shown.text
    assert "<textarea" not in shown.text
    post(page, "/jobs/edit", id=made, path="to", value="ann", send="0")
    payload = queue.get(made).payload
    assert (payload["to"], len(payload["blob"])) == ("ann", 900_000)


def test_of_a_huge_error_little_is_masked(queue, conn, page, monkeypatch):
    """Masking all of six megabytes took six seconds a page, and the page is read anew every five."""
    masked = []
    whole = curtain.mask_text
    monkeypatch.setattr(curtain, "mask_text", lambda text: masked.append(len(text)) or whole(text))
    error = "first password=hunter2\n" + "Authorization: Bearer abc.def\n" * 200_000 + "ValueError: token=hunter3"
    conn.execute("insert into redrive.jobs (kind, status, last_error) values ('mail', 'dead', %s)", (error,))
    for path in ("/jobs/1", "/dead", "/jobs", "/dead/group?name=" + queue.groups.list()[0].id):
        answer = page.get(path)
        assert answer.status_code == 200
        assert "hunter" not in answer.text
        assert "abc.def" not in answer.text
    assert "ValueError: token=***" in text(page.get("/jobs/1"))
    assert max(masked) < 20_000


def test_ten_thousand_kinds_make_no_huge_page(queue, conn, page):
    conn.execute(
        "insert into redrive.kinds (kind, running_most) select 'kind_' || i, 1 from generate_series(1, 10000) i"
    )
    conn.execute("insert into redrive.jobs (kind) select 'kind_' || i from generate_series(1, 10000) i")
    answer = page.get("/kinds")
    assert len(answer.text) < 600_000
    assert "more: name one above" in answer.text
    assert "Pause kind_9999" in text(page.get("/kinds?kind=kind_9999"))
    for path in ("/", "/dead", "/jobs"):
        assert len(page.get(path).text) < 600_000, path


def test_a_schedule_is_run_paused_and_resumed(queue, page):
    """CT-09: its next slots are told by its own clock and in UTC."""
    queue.schedules.add("nightly", "report", "0 3 * * *", timezone="Asia/Tokyo")
    assert "nightly" in text(page.get("/schedules"))
    shown = text(page.get("/schedules/one?name=nightly"))
    assert shown.count(" 03:00:00 +0900, 18:00 UTC") == 10
    assert "0 3 * * *  in Asia/Tokyo" in shown
    answer = post(page, "/schedules/run", name="nightly")
    assert "Job 1 of nightly is enqueued." in text(page.get(answer.headers["location"]))
    post(page, "/schedules/pause", name="nightly", reason="holiday")
    assert queue.schedules.list()[0].paused_reason == "holiday"
    assert "holiday" in text(page.get("/schedules/one?name=nightly"))
    post(page, "/schedules/resume", name="nightly")
    assert queue.schedules.list()[0].state == "active"
    assert post(page, "/schedules/run", name="nothing such").status_code == 400


def test_what_can_not_be_done_leads_back_to_where_it_was_asked_and_never_elsewhere(page):
    def refused(referer):
        given = {"token": token(page.get("/kinds")), "kind": "mail", "rate": "banana"}
        headers = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin", "Referer": referer}
        answer = page.post("/kinds/limit", data=given, headers=headers)
        assert answer.status_code == 400
        return answer.text

    assert 'href="/kinds?kind=mail"' in refused("http://localhost/kinds?kind=mail")
    for elsewhere in ("http://evil.example/kinds", "http://localhost//evil.example", "javascript:alert(1)", ""):
        said = refused(elsewhere)
        assert "evil" not in said
        assert "javascript:" not in said
        assert "To the first page" in said


def test_a_link_to_what_is_gone_says_so(page):
    assert "There is no job 99: it was never there, or has outlived its retention." in text(page.get("/jobs/99"))
    assert "Nothing is known of this group any more" in text(page.get("/dead/group?name=mail:abcdef01"))
    assert "There is no such schedule any more." in text(page.get("/schedules/one?name=nightly"))
    assert "There is no such page." in text(page.get("/nothing/such"))


def test_a_note_can_not_be_forged(page):
    page.cookies.set("redrive_desk_note", "YWxsIGlzIHdlbGw.0000")
    assert "all is well" not in page.get("/jobs").text


# -- where it stands


def test_mounted_below_a_path_every_link_and_form_stays_there(queue):
    from starlette.applications import Starlette  # noqa: PLC0415 - of this test alone
    from starlette.routing import Mount  # noqa: PLC0415 - as above

    queue.enqueue("mail")
    browser = client(Starlette(routes=[Mount("/ops/desk", desk(queue, local=True))]))
    for path in ("/", "/jobs", "/jobs/1", "/kinds?kind=mail", "/workers", "/schedules", "/dead", "/audit"):
        body = browser.get("/ops/desk" + path).text
        links = re.findall(r'(?:href|src|action)="([^"]+)"', body)
        assert links
        assert [link for link in links if not link.startswith(("/ops/desk/", "#"))] == [], path
    answer = post(browser, "/ops/desk/kinds/pause", seen="/ops/desk/kinds", kind="mail")
    assert answer.headers["location"] == "/ops/desk/kinds"
    assert "Path=/ops/desk" in answer.headers["set-cookie"]
    assert browser.get("/ops/desk/static/desk.css").status_code == 200


def test_mounted_in_flask_by_a2wsgi(queue):
    flask = pytest.importorskip("flask")
    pytest.importorskip("a2wsgi")
    from werkzeug.middleware.dispatcher import DispatcherMiddleware  # noqa: PLC0415 - comes with flask

    app = flask.Flask("shop")
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/desk": as_wsgi(desk(queue, local=True))})
    browser = app.test_client()
    answer = browser.get("/desk/jobs")
    assert answer.status_code == 200
    assert 'href="/desk/kinds"' in answer.text
    good = token(browser.get("/desk/kinds"))
    answer = browser.post(
        "/desk/kinds/pause", data={"kind": "mail", "token": good}, headers={"Origin": "http://localhost"}
    )
    assert answer.headers["location"] == "/desk/kinds"
    assert queue.kinds.list()[0].paused


# -- what it reads


def test_pages_can_change_nothing(queue):
    """Even if a page said an UPDATE: its transaction is read-only, and has a time."""
    from redrive.statements import named  # noqa: PLC0415 - of this test alone
    from redrive.web.reader import Reader  # noqa: PLC0415 - as above

    reader = Reader(queue)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        reader.ask(named("resume_kind", queue.schema, kind="mail", who=None, why=None))
    [row] = reader.ask(named("read_clock", queue.schema))
    assert row.moved == "0"


@contextmanager
def role(conn, name, *, rights):
    conn.execute(f"create role {name} login password 'pw'")
    try:
        conn.execute(f"grant usage on schema redrive to {name}")
        conn.execute(f"grant {rights} on all tables in schema redrive to {name}")
        yield name
    finally:
        conn.execute(f"drop owned by {name}")
        conn.execute(f"drop role {name}")


def test_a_role_that_may_only_read_gives_a_desk_that_says_so(db, conn):
    with role(conn, "t_desk_reader", rights="select") as name:
        queue = Queue(psycopg.conninfo.make_conninfo(db, user=name, password="pw"))
        browser = client(desk(queue, local=True))
        assert "has no right to change jobs" in text(browser.get("/"))
        conn.execute("insert into redrive.jobs (kind, status) values ('mail', 'dead')")
        assert "<form" not in browser.get("/jobs/1").text.split("<main", 1)[1]
        queue.close()


def test_where_sessions_can_only_read_the_desk_says_so_and_acts_on_nothing(db, conn):
    """As on a replica, which says the same in another word."""
    conn.execute("insert into redrive.jobs (kind, status) values ('mail', 'dead')")
    queue = Queue(psycopg.conninfo.make_conninfo(db, options="-c default_transaction_read_only=on"))
    browser = client(desk(queue, local=True))
    shown = browser.get("/jobs/1")
    assert "its sessions are read-only by default" in text(shown)
    assert "<form" not in shown.text.split("<main", 1)[1]
    forged = {"token": desk_token(browser, queue), "do": "requeue", "id": "1"}
    answer = browser.post("/jobs/act", data=forged, headers={"Origin": "http://localhost"})
    assert answer.status_code == 400
    assert "This desk can only look" in text(answer)
    queue.close()


def desk_token(browser, queue):
    """The token of a browser's session, for a form that no page has shown it."""
    sessions = Sessions({}, "redrive desk redrive", queue.settings.database_url)
    return sessions.token(sessions.read(browser.cookies["redrive_desk"]))


def test_a_desk_for_looking_only(queue):
    """OP-05: whatever form somebody sends it."""
    made = queue.enqueue("mail").id
    browser = client(desk(queue, local=True, read_only=True))
    assert "this desk is for looking only" in text(browser.get("/"))
    assert "<form" not in browser.get(f"/jobs/{made}").text.split("<main", 1)[1]
    forged = {"token": desk_token(browser, queue), "do": "cancel", "id": str(made), "kind": "mail"}
    for path in set(actions(browser.app)) - ENTRANCE:
        answer = browser.post(path, data=forged, headers={"Origin": "http://localhost"})
        assert (answer.status_code, "This desk is for looking only." in text(answer)) == (400, True), path
    assert queue.get(made).status == "pending"


def test_without_tables_and_without_a_database_it_says_what_to_do(empty_db):
    queue = Queue(empty_db)
    answer = client(desk(queue, local=True)).get("/")
    assert answer.status_code == 503
    assert "run redrive migrate" in text(answer)
    queue.close()
    nobody = Queue("postgresql://app:hunter2@127.0.0.1:1/app")
    answer = client(desk(nobody, local=True)).get("/")
    assert answer.status_code == 503
    assert "can't be reached" in text(answer)
    assert "hunter2" not in answer.text


def test_while_one_asks_anew_the_others_have_the_answer_before():
    now, asked, go = [0.0], threading.Event(), threading.Event()
    shared = Shared(clock=lambda: now[0])
    assert shared.get("x", 10, lambda: 1) == 1

    def slowly():
        asked.set()
        assert go.wait(30)
        return 2

    now[0] = 11
    thread = threading.Thread(target=shared.get, args=("x", 10, slowly))
    thread.start()
    assert asked.wait(30)
    assert shared.get("x", 10, lambda: 3) == 1
    go.set()
    thread.join()
    assert shared.get("x", 10, lambda: 3) == 2
    shared.forget()
    assert shared.get("x", 10, lambda: 3) == 3


def test_a_reading_that_fails_is_tried_by_the_next_who_asks():
    shared = Shared()

    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shared.get("x", 10, broken)
    assert shared.get("x", 10, lambda: 1) == 1


def test_ten_tabs_ask_once_op_01(queue):
    """OP-01."""
    pages = desk(queue, local=True)
    browsers = [client(pages) for _ in range(10)]
    browsers[0].get("/")
    asked = pages.reader.asked
    for browser in browsers:
        assert browser.get("/").status_code == 200
    assert pages.reader.asked == asked


def test_a_part_that_can_not_be_read_hides_no_other(db, conn):
    conn.execute("insert into redrive.jobs (kind, status) values ('mail', 'dead')")
    with role(conn, "t_desk_half", rights="select") as name:
        conn.execute(f"revoke select on redrive.failures from {name}")
        queue = Queue(psycopg.conninfo.make_conninfo(db, user=name, password="pw"))
        said = text(client(desk(queue, local=True)).get("/"))
        assert "failures: this role may not read it" in said
        assert "1 dead job, none of them new" in said
        queue.close()


def test_prometheus_reads_how_it_stands_where_it_may_see_the_pages(queue, page, conn):
    conn.execute("insert into redrive.jobs (kind, status) values ('mail', 'dead')")
    answer = page.get("/metrics", headers={"Accept": "text/plain"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'redrive_queue_jobs{kind="mail",status="dead"} 1.0' in answer.text
    assert client(desk(queue, password=PASSWORD)).get("/metrics").status_code == 401


def test_a_job_of_an_adopted_table_names_its_row_and_one_that_only_says_so_does_no_harm(conn, page):
    make(conn, "mail_simple")
    adopt(conn, "mail_simple")
    insert(conn, "mail_simple")
    [(number, row)] = conn.execute("select id, metadata #>> '{adopted,row}' from redrive.jobs").fetchall()
    shown = page.get(f"/jobs/{number}")
    assert f"{row} of public.mail_simple" in " ".join(text(shown).split())
    path = re.search(r'href="([^"]*metadata.adopted.table[^"]*)"', shown.text)[1]
    assert f"/jobs/{number}" in page.get(unescape(path)).text
    for said in (
        '{"table": [1], "row": null}',
        '{"table": {"a": 1}, "row": 7}',
        "[]",
        '{"table": "<b>", "row": "<i>"}',
    ):
        forged = "insert into redrive.jobs (kind, metadata) values ('x', %s::jsonb) returning id"
        [(number,)] = conn.execute(forged, (f'{{"adopted": {said}}}',)).fetchall()
        answer = page.get(f"/jobs/{number}")
        assert (answer.status_code, "<b>" in answer.text) == (200, False), said
