"""Jobs, failed attempts and workers as models that Django does not manage: for the admin, and for queries of your own.

They are for looking. What changes a job goes through the queue (enqueue, cancel, requeue), which keeps leases and
history right; saving or deleting here is refused.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import models

from redrive.django.options import options


def table(name: str) -> str:
    """Name a table with its schema, as Django lets it stand in a query."""
    try:
        schema = options().schema
    except ImproperlyConfigured:  # which the checks say; models are made before them
        schema = "redrive"
    return '"{}"."{}"'.format(schema.replace('"', '""'), name)


_UNSAVED = "redrive's rows are not saved through the ORM: use queue.enqueue, queue.cancel, queue.requeue"
_UNDELETED = "redrive's rows are not deleted through the ORM: workers do so, by the retention settings"


class Looking(models.QuerySet[Any]):
    """A query that finds rows and writes none, however many; Django's async methods end in these as well."""

    def delete(self) -> Any:
        """Refuse.

        Raises:
            TypeError: always, with what to do instead.
        """
        raise TypeError(_UNDELETED)

    def update(self, **values: Any) -> Any:
        """Refuse, as :meth:`delete` does."""
        raise TypeError(_UNSAVED)

    def bulk_create(self, *rows: Any, **how: Any) -> Any:
        """Refuse, as :meth:`delete` does."""
        raise TypeError(_UNSAVED)

    def bulk_update(self, *rows: Any, **how: Any) -> Any:
        """Refuse, as :meth:`delete` does."""
        raise TypeError(_UNSAVED)


class ForLooking(models.Model):
    """What is not saved or deleted through the ORM."""

    objects = Looking.as_manager()

    class Meta:
        """Not a table of its own."""

        abstract = True

    def save(self, *args: Any, **how: Any) -> None:
        """Refuse.

        Raises:
            TypeError: always, with what to do instead.
        """
        raise TypeError(_UNSAVED)

    def delete(self, *args: Any, **how: Any) -> Any:
        """Refuse.

        Raises:
            TypeError: always, with what to do instead.
        """
        raise TypeError(_UNDELETED)


class Job(ForLooking):
    """A job."""

    STATES = [(state, state) for state in ("pending", "running", "succeeded", "failed", "dead")]

    id = models.BigAutoField(primary_key=True)
    kind = models.TextField()
    payload = models.JSONField()
    status = models.TextField(choices=STATES)
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    run_at = models.DateTimeField()
    locked_at = models.DateTimeField(null=True)
    locked_by = models.TextField(null=True)
    last_error = models.TextField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    priority = models.SmallIntegerField()
    lane = models.TextField()
    key = models.TextField(null=True)
    claims = models.IntegerField()
    crashes = models.IntegerField()
    expires_at = models.DateTimeField(null=True)
    progress = models.JSONField(null=True)
    result = models.JSONField(null=True)
    metadata = models.JSONField(null=True)
    fingerprint = models.TextField(null=True)

    class Meta:
        """Redrive's own table."""

        managed = False
        db_table = table("jobs")
        default_permissions = ("view",)
        permissions = [("requeue_job", "Can send dead jobs back"), ("cancel_job", "Can cancel jobs")]
        verbose_name = "job"
        verbose_name_plural = "jobs"

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class Failure(ForLooking):
    """A failed attempt."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    kind = models.TextField()
    attempt = models.IntegerField()
    outcome = models.TextField()
    failed_at = models.DateTimeField()
    duration = models.FloatField(null=True)
    worker = models.TextField(null=True)
    error_type = models.TextField()
    message = models.TextField()
    traceback = models.TextField(null=True)
    fingerprint = models.TextField(null=True)

    class Meta:
        """Redrive's own table."""

        managed = False
        db_table = table("failures")
        default_permissions = ("view",)
        verbose_name = "failed attempt"
        verbose_name_plural = "failed attempts"

    def __str__(self) -> str:
        return f"{self.error_type} of job {self.job_id}"


class Worker(ForLooking):
    """A worker process."""

    name = models.TextField(primary_key=True)
    host = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    concurrency = models.IntegerField()
    in_flight = models.IntegerField()
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    problem = models.TextField(null=True)

    class Meta:
        """Redrive's own table."""

        managed = False
        db_table = table("workers")
        default_permissions = ("view",)
        verbose_name = "worker"
        verbose_name_plural = "workers"

    def __str__(self) -> str:
        return str(self.name)
