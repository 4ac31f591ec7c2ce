"""redrive's own migration 5, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0005_stats.sql."""

    dependencies = (("redrive", "0004_requeues"),)
    operations = (Install(5),)
