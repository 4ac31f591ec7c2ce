"""redrive's own migration 7, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0007_flow.sql."""

    dependencies = (("redrive", "0006_breakers"),)
    operations = (Install(7),)
