"""redrive's own migration 3, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0003_kinds.sql."""

    dependencies = (("redrive", "0002_schedules"),)
    operations = (Install(3),)
