"""redrive's own migration 8, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0008_alerts.sql."""

    dependencies = (("redrive", "0007_flow"),)
    operations = (Install(8),)
