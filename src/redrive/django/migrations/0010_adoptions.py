"""redrive's own migration 10, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0010_adoptions.sql."""

    dependencies = (("redrive", "0009_batches"),)
    operations = (Install(10),)
