"""redrive's own migration 9, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0009_batches.sql."""

    dependencies = (("redrive", "0008_alerts"),)
    operations = (Install(9),)
