"""Every address of the desk. Whatever is not open in :mod:`redrive.web.guard` is closed, without being told so here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from redrive.web import dead_letters, deeds, entrance, pages, sending, story
from redrive.web.metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from redrive.web.app import Desk
    from redrive.web.page import Page


def routes(desk: Desk) -> list[Route]:
    """List the routes of *desk*."""
    looks: dict[str, tuple[str, Callable[[Desk, Request], Page | Response]]] = {
        "now": ("/", pages.now),
        "dead": ("/dead", dead_letters.dead),
        "group": ("/dead/group", dead_letters.group),
        "jobs": ("/jobs", pages.jobs),
        "confirm": ("/jobs/confirm", sending.confirm),
        "job": ("/jobs/{id}", story.job),
        "kinds": ("/kinds", pages.kinds),
        "batches": ("/batches", pages.batches),
        "workers": ("/workers", pages.workers),
        "schedules": ("/schedules", pages.schedules),
        "schedule": ("/schedules/one", pages.schedule),
        "audit": ("/audit", pages.audit),
        "metrics": ("/metrics", metrics),
        "login": ("/login", entrance.login_page),
    }
    acts = {
        "act": ("/jobs/act", sending.act),
        "edit": ("/jobs/edit", sending.edit),
        "stop_requeue": ("/dead/stop", sending.stop),
        "pause_kind": ("/kinds/pause", deeds.pause_kind),
        "resume_kind": ("/kinds/resume", deeds.resume_kind),
        "limit_kind": ("/kinds/limit", deeds.limit_kind),
        "route_kind": ("/kinds/route", deeds.route_kind),
        "open_breaker": ("/kinds/hold", deeds.open_breaker),
        "close_breaker": ("/kinds/let-go", deeds.close_breaker),
        "pause_schedule": ("/schedules/pause", deeds.pause_schedule),
        "resume_schedule": ("/schedules/resume", deeds.resume_schedule),
        "run_schedule": ("/schedules/run", deeds.run_schedule),
    }
    sessions = {"sign_in": ("/login", entrance.sign_in), "sign_out": ("/logout", entrance.sign_out)}
    return [
        *(Route(path, desk.view(view), name=name, methods=["GET"]) for name, (path, view) in looks.items()),
        *(Route(path, desk.action(action), name=name, methods=["POST"]) for name, (path, action) in acts.items()),
        *(
            Route(path, desk.action(action, writes=False), name=name, methods=["POST"])
            for name, (path, action) in sessions.items()
        ),
    ]
