"""Jobs in the admin, and redrive's desk behind the project's login."""

from __future__ import annotations

import re
from unittest import mock
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from redrive import Dead
from redrive.django import paging, queue
from redrive.django.ormqueue import plain_queue
from redrive.django.testing import clear, run_pending

LIST, GROUPS = "/admin/redrive/job/", "/admin/redrive/job/groups/"


@queue.handler("mail_out", max_attempts=1)
def mail_out(payload):
    raise Dead("550 no such box, password=hunter2")


@queue.handler("hush", sensitive=True)
def hush(payload):
    pass


def user(name, *permissions, staff=True, boss=False):
    found = User.objects.create_user(name, password="pw", is_staff=staff, is_superuser=boss)
    found.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return found


class Case(TestCase):
    databases = {"default"}

    @classmethod
    def setUpTestData(cls):
        clear()
        cls.boss = user("boss", boss=True)
        cls.looker = user("looker", "view_job")
        cls.nobody = user("nobody", staff=True)
        cls.dead = queue.enqueue("mail_out", {"to": "ada@x.example", "token": "sesame"})
        run_pending(kinds=["mail_out"])
        cls.waiting = queue.enqueue("hush", {"to": "<b>bob</b>"}, key="k", delay=60)
        cls.due = queue.enqueue("hush", {})

    def setUp(self):
        self.client.force_login(self.boss)

    def page(self, address, **query):
        answer = self.client.get(address, query)
        assert answer.status_code == 200, answer.status_code
        return re.sub(r"\s+", " ", answer.content.decode())

    def post(self, address, origin="http://testserver", **form):
        """As a browser posts a form of the desk's."""
        how = {"content_type": "application/x-www-form-urlencoded", "HTTP_ORIGIN": origin}
        return self.client.post(address, urlencode(form), **how)

    def listed(self, **query):
        return [int(each) for each in re.findall(r"/admin/redrive/job/(\d+)/change/", self.page(LIST, **query))]

    def test_the_list_shows_the_newest_first_and_no_secret(self):
        assert self.listed() == [self.due.id, self.waiting.id, self.dead.id]
        page = self.page(LIST)
        assert "550 no such box" in page
        assert not re.search("hunter2|sesame", page)
        assert len(re.findall(r"(?<!\d)3 jobs", page)) == 1
        assert "scheduled" in page

    def test_it_is_filtered_and_searched(self):
        assert self.listed(state="dead") == [self.dead.id]
        assert self.listed(state="scheduled") == [self.waiting.id]
        assert self.listed(state="retrying") == []
        assert self.listed(kind="hush") == [self.due.id, self.waiting.id]
        assert self.listed(q=self.dead.id) == [self.dead.id]
        assert self.listed(q="k") == [self.waiting.id]
        assert self.listed(q="9" * 40) == []

    def test_a_job_is_shown_whole_masked_and_cannot_be_edited(self):
        page = self.page(f"{LIST}{self.dead.id}/change/")
        assert "ada@x.example" in page
        assert "Traceback" in page
        assert not re.search("hunter2|sesame", page)
        assert "Send back" in page
        assert not re.search(r'type="submit"[^>]*name="_save"', page)
        page = self.page(f"{LIST}{self.waiting.id}/change/")
        assert "bob" not in page, "its kind is sensitive"
        assert self.client.post(f"{LIST}{self.dead.id}/change/", {"kind": "other"}).status_code == 403
        assert self.client.get(f"{LIST}add/").status_code == 403
        assert self.client.get(f"{LIST}{self.dead.id}/delete/").status_code == 403

    def test_jobs_are_sent_back_and_cancelled_and_the_audit_knows_by_whom(self):
        ids = [self.dead.id, self.due.id]
        answer = self.client.post(LIST, {"action": "requeue", "_selected_action": ids}, follow=True)
        assert "1 job sent back; 1 left alone, since it is neither dead nor failed." in answer.content.decode()
        assert queue.get(self.dead.id).status == "pending"
        self.client.post(LIST, {"action": "cancel", "_selected_action": [self.waiting.id]})
        assert (queue.get(self.waiting.id).status, queue.get(self.due.id).status) == ("failed", "pending")
        self.client.post(f"{LIST}{self.due.id}/cancel/")
        assert queue.get(self.due.id).last_error == "cancelled: in the admin"
        self.client.post(f"{LIST}{self.due.id}/requeue/")
        assert queue.get(self.due.id).status == "pending"
        assert {(act.action, act.by) for act in queue.audit.list()} >= {("requeue", "boss"), ("cancel", "boss")}

    def test_all_that_a_filter_means_can_be_selected(self):
        data = {"action": "cancel", "_selected_action": [self.due.id], "select_across": "1"}
        self.client.post(f"{LIST}?kind=hush", data)
        assert {queue.get(each.id).status for each in (self.waiting, self.due)} == {"failed"}

    def test_dead_letters_are_put_together_by_cause_and_sent_back(self):
        page = self.page(GROUPS)
        [name] = re.findall(r'name="group" value="(mail_out:[^"]+)"', page)
        assert "550 no such box" in page
        assert "hunter2" not in page
        answer = self.client.post(f"{GROUPS}requeue/", {"group": name}, follow=True)
        assert "1 job of mail_out" in answer.content.decode()
        [made] = queue.requeues.list()
        assert (made.by, made.canary, made.matched) == ("boss", True, 1)
        answer = self.client.post(f"{GROUPS}requeue/", {"group": "nothing:1"}, follow=True)
        assert [str(each)[:18] for each in get_messages(answer.wsgi_request)] == ["no group is called"]

    def test_who_may_look_may_not_act(self):
        self.client.force_login(self.looker)
        page = self.page(LIST)
        assert 'value="requeue"' not in page
        assert "Send back" not in self.page(f"{LIST}{self.dead.id}/change/")
        assert 'name="group"' not in self.page(GROUPS)
        for address in (f"{LIST}{self.dead.id}/requeue/", f"{LIST}{self.due.id}/cancel/", f"{GROUPS}requeue/"):
            assert self.client.post(address, {"group": "mail_out"}).status_code == 403, address
        assert self.client.get(f"{LIST}{self.dead.id}/requeue/").status_code == 403
        assert (queue.get(self.dead.id).status, queue.get(self.due.id).status) == ("dead", "pending")

    def test_who_may_not_look_sees_nothing(self):
        self.client.force_login(self.nobody)
        for address in (LIST, GROUPS, f"{LIST}{self.dead.id}/change/"):
            assert self.client.get(address).status_code == 403, address

    def test_rows_that_python_has_no_room_for_are_shown_all_the_same(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO redrive.jobs (kind, payload, run_at, created_at) VALUES "
                "('odd', %s, 'infinity', '-infinity') RETURNING id",
                ['{"n": ' + "9" * 5000 + "}"],
            )
            [[number]] = cursor.fetchall()
        assert self.listed()[0] == number
        assert "never" in self.page(f"{LIST}{number}/change/")

    def test_a_job_that_is_not_there(self):
        assert self.client.get(f"{LIST}123456789/change/").status_code == 302

    def test_nothing_is_counted_to_its_end(self):
        with CaptureQueriesContext(connection) as said:
            self.page(LIST)
        counts = [each["sql"] for each in said if "COUNT(" in each["sql"] and '"redrive"."jobs"' in each["sql"]]
        assert counts
        assert all(f"LIMIT {paging.MOST + 1}" in each for each in counts)

    def test_many_jobs_are_told_about_and_not_counted(self):
        with mock.patch.object(paging, "MOST", 2):
            assert "about 2 jobs; the newest 2 are listed" in self.page(LIST)
            queue.enqueue("hush")
            assert "2+ jobs; the newest 2 are listed" in self.page(LIST, kind="hush")

    def test_a_search_that_takes_too_long_is_given_up(self):
        with mock.patch("redrive.django.admin.PATIENCE", "1ms"), connection.cursor() as cursor:
            cursor.execute("INSERT INTO redrive.jobs (kind) SELECT 'many' FROM generate_series(1, 30000)")
            answer = self.client.get(LIST, {"kind": "none such"})
            assert (answer.status_code, answer["Location"]) == (302, LIST)
        assert "That took longer than 1ms" in self.page(LIST)

    def test_the_index_of_the_admin_has_them(self):
        page = self.page("/admin/")
        assert "Background jobs" in page
        self.page("/admin/redrive/worker/")

    # -- the desk

    def test_the_desk_asks_for_the_projects_login(self):
        self.client.logout()
        answer = self.client.get("/desk/")
        assert answer.status_code == 302
        assert "login" in answer["Location"]
        self.client.force_login(self.nobody)
        assert self.client.get("/desk/").status_code == 403

    def test_without_an_address_of_the_client_the_desk_answers(self):
        """A server behind a UNIX socket gives none. Who asks is the project's login to say."""
        self.client.defaults["REMOTE_ADDR"] = ""
        assert self.client.get("/desk/static/desk.css").status_code == 200

    def test_the_desk_shows_its_pages_and_acts_for_the_projects_user(self):
        assert "start one with python manage.py redrive worker" in self.page("/desk/")
        page = self.page("/desk/kinds")
        assert "boss" in page
        [token] = set(re.findall(r'name="token" value="([^"]+)"', page))
        answer = self.post("/desk/kinds/pause", token=token, kind="*", reason="a test")
        assert answer.status_code == 303
        assert "form-action 'self'" in answer["Content-Security-Policy"]
        plain = plain_queue()
        try:
            [act] = plain.audit.list(limit=1)
            assert (act.action, act.by) == ("pause", "boss")
            plain.kinds.resume("*")
        finally:
            plain.close()
        assert self.post("/desk/kinds/pause", "http://elsewhere", token=token, kind="*").status_code == 403

    def test_who_may_look_may_not_act_at_the_desk(self):
        self.client.force_login(self.looker)
        page = self.page("/desk/kinds")
        [token] = set(re.findall(r'name="token" value="([^"]+)"', page)) or [""]
        answer = self.post("/desk/kinds/pause", token=token, kind="*")
        assert answer.status_code == 403
        assert "looker may look, and not act" in answer.content.decode()

    async def test_the_desk_under_asgi(self):
        await sync_to_async(self.async_client.force_login)(self.boss)
        answer = await self.async_client.get("/desk/jobs")
        assert answer.status_code == 200
        assert b"redrive" in answer.content
