"""redrive's own migration 12, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0012_routes.sql."""

    dependencies = (("redrive", "0011_topics"),)
    operations = (Install(12),)
