"""redrive's own migration 6, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0006_breakers.sql."""

    dependencies = (("redrive", "0005_stats"),)
    operations = (Install(6),)
