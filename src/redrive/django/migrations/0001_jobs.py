"""The tables, as redrive's own migration 1 makes them; and the models that the admin looks at them by."""

from __future__ import annotations

from django.db import migrations, models

from redrive.django.install import Install
from redrive.django.models import table


def unmanaged(
    name: str, key: tuple[str, models.Field], of: str, plural: str, **options: object
) -> migrations.CreateModel:
    """Make known a model that is no table of Django's: its key is all of it that the autodetector looks at."""
    how = {"managed": False, "db_table": table(of), "default_permissions": ("view",), **options}
    return migrations.CreateModel(name, [key], options={**how, "verbose_name_plural": plural})


class Migration(migrations.Migration):
    """redrive's first."""

    initial = True
    operations = (
        Install(1),
        unmanaged(
            "Job",
            ("id", models.BigAutoField(primary_key=True, serialize=False)),
            "jobs",
            "jobs",
            verbose_name="job",
            permissions=[("requeue_job", "Can send dead jobs back"), ("cancel_job", "Can cancel jobs")],
        ),
        unmanaged(
            "Failure",
            ("id", models.BigAutoField(primary_key=True, serialize=False)),
            "failures",
            "failed attempts",
            verbose_name="failed attempt",
        ),
        unmanaged(
            "Worker",
            ("name", models.TextField(primary_key=True, serialize=False)),
            "workers",
            "workers",
            verbose_name="worker",
        ),
    )
