"""redrive's own migration 2, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0002_schedules.sql."""

    dependencies = (("redrive", "0001_jobs"),)
    operations = (Install(2),)
