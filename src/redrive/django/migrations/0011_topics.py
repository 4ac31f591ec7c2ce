"""redrive's own migration 11, in Django's order."""

from __future__ import annotations

from django.db import migrations

from redrive.django.install import Install


class Migration(migrations.Migration):
    """The same as 0011_topics.sql."""

    dependencies = (("redrive", "0010_adoptions"),)
    operations = (Install(11),)
