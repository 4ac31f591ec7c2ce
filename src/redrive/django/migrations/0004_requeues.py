"""redrive's own migration 4, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0004_requeues.sql."""

    dependencies = (("redrive", "0003_kinds"),)
    operations = (Install(4),)
