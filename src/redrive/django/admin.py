"""Jobs in Django's admin: list, filters, failure groups, sending back and cancelling, with everything secret masked.

Nobody edits, adds or deletes here. It is quick on millions of rows: nothing is counted to its end, what is listed is
found along an index or given up after three seconds. redrive's own desk (``redrive.django.urls``) can more.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, transaction
from django.db.models import DateTimeField, F, Q, Value
from django.db.models.functions import Greatest, Least
from django.http import Http404, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone

from redrive.curtain import text
from redrive.django import shown
from redrive.django.models import Job, Worker
from redrive.django.ormqueue import project_queue
from redrive.django.paging import MOST, BoundedPaginator
from redrive.ended import Ended
from redrive.errors import InvalidOption, UnknownGroup
from redrive.statements import named
from redrive.store import workers
from redrive.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest, HttpResponse

PATIENCE = "3s"
GROUPS = 100
REASON = "in the admin"
_CANCELLED = "57014"
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


class StateFilter(admin.SimpleListFilter):
    """By state, as people call them."""

    title, parameter_name = "state", "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """List the states."""
        names = ("dead", "pending", "scheduled", "retrying", "running", "succeeded", "failed")
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Narrow the list."""
        match self.value():
            case None:
                return queryset
            case "scheduled":
                return queryset.filter(status="pending", run_at__gt=timezone.now())
            case "retrying":
                return queryset.filter(status="pending", attempts__gt=0)
            case state:
                return queryset.filter(status=state)


class KindFilter(admin.SimpleListFilter):
    """By kind: those that this project or a worker knows; there is no list of all others without reading all rows."""

    title, parameter_name = "kind", "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """List the kinds."""
        queue = project_queue()
        known = {kind for row in queue.ask(workers(queue.schema)) for kind in row.kinds} | {*queue.handlers.kinds()}
        given = request.GET.get(self.parameter_name)
        return [(kind, kind) for kind in sorted(known | ({given} if given else set()))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Narrow the list."""
        return queryset if self.value() is None else queryset.filter(kind=self.value())


class ForLooking(admin.ModelAdmin):
    """What is looked at only."""

    sortable_by: Sequence[str] = ()
    show_full_result_count = False
    show_facets = getattr(getattr(admin, "ShowFacets", None), "NEVER", None)  # each would count all rows; from Django 5

    def get_queryset(self, request: HttpRequest) -> Any:
        """Look into the database that has the jobs."""
        return super().get_queryset(request).using(project_queue().alias)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody may."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody may."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody may."""
        return False


@admin.register(Job)
class JobAdmin(ForLooking):
    """Jobs."""

    list_display = ("id", "kind", "state", "tries", "error", "due", "enqueued", "lane")
    list_filter = (StateFilter, KindFilter)
    list_per_page = 50
    ordering = ("-id",)
    paginator = BoundedPaginator
    search_fields = ("id",)
    search_help_text = "A job's number, or its whole key"
    actions = ("requeue", "cancel")
    fieldsets = (
        (None, {"fields": ("kind", "now", "tries", "priority_and_lane", "key_shown", "worker", "times")}),
        ("What it is to do", {"fields": ("payload_shown", "metadata_shown")}),
        ("What came of it", {"fields": ("error_shown", "history", "progress_shown", "result_shown")}),
    )
    readonly_fields = (
        *("now", "tries", "priority_and_lane", "key_shown", "worker", "times", "payload_shown", "metadata_shown"),
        *("error_shown", "history", "progress_shown", "result_shown"),
    )

    # -- the list

    def get_queryset(self, request: HttpRequest) -> Any:
        """Read what the list shows, and times that Python may have no room for as near as it comes."""
        brief = ("id", "kind", "status", "attempts", "max_attempts", "last_error", "lane")
        times = {"due_at": _clamped("run_at"), "made_at": _clamped("created_at")}
        return super().get_queryset(request).only(*brief).annotate(**times)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find by number or key: both have an index, while a job lives."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isdecimal() and len(term) < 19:  # noqa: PLR2004 - of a bigint
            return queryset.filter(pk=int(term)), False
        # As the indexes of keys are; of other jobs that have ended none has its key any more.
        living, succeeded = Q(key=term, status__in=["pending", "running"]), Q(key=term, status="succeeded")
        return queryset.filter(living | succeeded), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list; a search that no index serves is given up."""
        queue = project_queue()
        try:
            with transaction.atomic(using=queue.alias):
                queue.ask(named("admin_patience", queue.schema, timeout=PATIENCE))
                answer = super().changelist_view(request, extra_context)
                if isinstance(answer, TemplateResponse):
                    answer.context_data["jobs_said"] = _said(answer)
                return answer
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", "") != _CANCELLED:
                raise
            said = f"That took longer than {PATIENCE}: no index serves it. Narrow it down, or search at redrive's desk."
            self.message_user(request, said, messages.ERROR)
            return HttpResponseRedirect(reverse("admin:redrive_job_changelist"))

    @admin.display(description="state")
    def state(self, job: Any) -> str:
        """Name the state."""
        return shown.state(job.status, job.attempts, job.due_at)

    @admin.display(description="attempts")
    def tries(self, job: Any) -> str:
        """Write attempts of how many."""
        return f"{job.attempts} of {job.max_attempts}"

    @admin.display(description="due")
    def due(self, job: Any) -> str:
        """Write when it is or was due."""
        return shown.when_briefly(job.due_at)

    @admin.display(description="enqueued")
    def enqueued(self, job: Any) -> str:
        """Write when it was enqueued."""
        return shown.when_briefly(job.made_at)

    @admin.display(description="last error")
    def error(self, job: Any) -> str:
        """Give the last error in a line, masked."""
        return shown.brief(job.last_error)

    # -- what can be done

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        """Whether this user may send jobs back."""
        return bool(request.user.has_perm("redrive.requeue_job"))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether this user may cancel jobs."""
        return bool(request.user.has_perm("redrive.cancel_job"))

    @admin.action(description="Send the selected dead or failed jobs back", permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: Any) -> None:
        """Send back what is dead or failed; what isn't is left alone, and that is said."""
        self._requeue(request, _ids(queryset))

    @admin.action(description="Cancel the selected jobs", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: Any) -> None:
        """Cancel what is pending, ask what runs to stop."""
        self._cancel(request, _ids(queryset))

    def get_urls(self) -> Any:
        """Add the pages of ours."""
        wrap = self.admin_site.admin_view
        own = [
            path("groups/", wrap(self.groups_page), name="redrive_job_groups"),
            path("groups/requeue/", wrap(self.requeue_group), name="redrive_job_requeue_group"),
            path("<int:job_id>/requeue/", wrap(self.requeue_one), name="redrive_job_requeue"),
            path("<int:job_id>/cancel/", wrap(self.cancel_one), name="redrive_job_cancel"),
        ]
        return [*own, *super().get_urls()]

    def requeue_one(self, request: HttpRequest, job_id: int) -> HttpResponse:
        """Send one back, from its page."""
        _demand(request, self.has_requeue_permission(request))
        self._requeue(request, [job_id])
        return HttpResponseRedirect(reverse("admin:redrive_job_change", args=[job_id]))

    def cancel_one(self, request: HttpRequest, job_id: int) -> HttpResponse:
        """Cancel one, from its page."""
        _demand(request, self.has_cancel_permission(request))
        self._cancel(request, [job_id])
        return HttpResponseRedirect(reverse("admin:redrive_job_change", args=[job_id]))

    def groups_page(self, request: HttpRequest) -> HttpResponse:
        """Show what died, put together by what it died of."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        groups = [
            {"group": group, "error": (text(group.error) or "")[:300], "last": shown.when(group.last)}
            | {name: group.counted(name) for name in ("dead", "retrying", "failures")}
            for group in project_queue().groups.list(limit=GROUPS)
        ]
        context = {
            **self.admin_site.each_context(request),
            "title": "Dead letters, by cause",
            "opts": self.model._meta,  # noqa: SLF001 - Django's documented name
            "groups": groups,
            "most": GROUPS,
            "may_requeue": self.has_requeue_permission(request),
        }
        return TemplateResponse(request, "admin/redrive/job/groups.html", context)

    def requeue_group(self, request: HttpRequest) -> HttpResponse:
        """Have the workers send a group back, one first and the others if it succeeds."""
        _demand(request, self.has_requeue_permission(request))
        queue, canary = project_queue(), "all" not in request.POST
        try:
            group = queue.groups.find(request.POST.get("group", ""))
            made = queue.requeues.start(group.which, by=_who(request), reason=REASON, canary=canary)
        except (UnknownGroup, InvalidOption) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            how = "one goes first, the others if it succeeds" if canary else "all of them"
            sent = counted(made.matched or 0, f"job of {group.id} is", f"jobs of {group.id} are")
            self.message_user(request, f"{sent} sent back by the workers: {how}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:redrive_job_groups"))

    def _requeue(self, request: HttpRequest, ids: Sequence[int]) -> None:
        which = Ended(ids=ids, statuses=("dead", "failed"))
        moved = project_queue().requeue(which, by=_who(request), reason=REASON)
        self._tell(request, "sent back", len(moved), len(ids) - len(moved), "neither dead nor failed")

    def _cancel(self, request: HttpRequest, ids: Sequence[int]) -> None:
        done = project_queue().cancel(*ids, by=_who(request), reason=REASON) if ids else {}
        self._tell(request, "cancelled or asked to stop", len(done), len(ids) - len(done), "at an end already")

    def _tell(self, request: HttpRequest, what: str, done: int, left: int, why: str) -> None:
        rest = f"; {left:,} left alone, since {'it is' if left == 1 else 'they are'} {why}" if left else ""
        level = messages.SUCCESS if done else messages.WARNING
        self.message_user(request, f"{counted(done, 'job')} {what}{rest}.", level)

    # -- one job

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Read a job, whatever a stranger wrote into it."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.shown = shown.Shown(found.pk)
            if found.shown.job is None:
                raise Http404
        return found

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show a job."""
        may = {"may_requeue": self.has_requeue_permission(request), "may_cancel": self.has_cancel_permission(request)}
        return super().change_view(request, object_id, form_url, {**may, **(extra_context or {})})

    @admin.display(description="state")
    def now(self, job: Any) -> str:
        """Name the state."""
        return f"{self.state(job)}{', asked to stop' if job.shown.job.cancel_requested_at else ''}"

    @admin.display(description="priority, lane")
    def priority_and_lane(self, job: Any) -> str:
        """Write both."""
        return f"{job.shown.text('priority')}, {job.shown.text('lane')}"

    @admin.display(description="key")
    def key_shown(self, job: Any) -> str:
        """Give the key."""
        return str(job.shown.text("key"))

    @admin.display(description="worker")
    def worker(self, job: Any) -> str:
        """Name the worker that has or had it."""
        return str(job.shown.text("locked_by"))

    @admin.display(description="times")
    def times(self, job: Any) -> str:
        """Write when it was enqueued, is due, changed last."""
        row = job.shown
        said = f"enqueued {row.text('created_at')}, due {shown.when(row.job.run_at)}, changed {row.text('updated_at')}"
        return said + (f", worthless after {row.text('expires_at')}" if row.job.expires_at else "")

    @admin.display(description="payload")
    def payload_shown(self, job: Any) -> Any:
        """Give the payload, masked."""
        return job.shown.data("payload")

    @admin.display(description="metadata")
    def metadata_shown(self, job: Any) -> Any:
        """Give the metadata, masked."""
        return job.shown.data("metadata")

    @admin.display(description="progress")
    def progress_shown(self, job: Any) -> Any:
        """Give the progress, masked."""
        return job.shown.data("progress")

    @admin.display(description="result")
    def result_shown(self, job: Any) -> Any:
        """Give the result, masked."""
        return job.shown.data("result")

    @admin.display(description="last error")
    def error_shown(self, job: Any) -> Any:
        """Give the last error, masked."""
        return job.shown.error()

    @admin.display(description="failed attempts")
    def history(self, job: Any) -> Any:
        """Give the failed attempts, masked."""
        return job.shown.history()


@admin.register(Worker)
class WorkerAdmin(ForLooking):
    """Worker processes, of the last day."""

    list_display = ("name", "host", "pid", "version", "concurrency", "in_flight", "heartbeat_at", "problem")
    list_display_links = None
    ordering = ("-heartbeat_at",)


def _clamped(name: str) -> Any:
    first, last = Value(_FIRST, output_field=DateTimeField()), Value(_LAST, output_field=DateTimeField())
    return Least(Greatest(F(name), first), last)


def _ids(queryset: Any) -> list[int]:
    return list(queryset.order_by("-id").values_list("id", flat=True)[:MOST])


def _who(request: HttpRequest) -> str:
    return str(request.user.get_username())


def _demand(request: HttpRequest, allowed: bool) -> None:  # noqa: FBT001 - what it is about
    if not allowed or request.method != "POST":
        raise PermissionDenied


def _said(answer: Any) -> str:
    change_list = answer.context_data.get("cl")
    return change_list.paginator.said if change_list is not None else ""
