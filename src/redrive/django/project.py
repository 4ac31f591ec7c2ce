"""Sets up the Django project that DJANGO_SETTINGS_MODULE names, for programs that are no ``manage.py``.

``redrive worker redrive.django.project:queue`` is what ``manage.py redrive worker`` runs, and its worker processes and
the child processes of isolated handlers begin here, too.
"""

from __future__ import annotations

import django
from django.apps import apps

from redrive.django.ormqueue import plain_queue, project_queue

if not (apps.ready or apps.loading):
    django.setup()

queue = project_queue()
plain = plain_queue()
"""With connections of its own, for programs that work for many at once."""
