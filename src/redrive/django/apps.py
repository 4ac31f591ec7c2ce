"""The app: it registers the checks, looks after connections in workers, and imports the modules that have handlers."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from redrive.django import checks, upkeep
from redrive.django.options import options

BACKEND = "RedriveBackend"


class RedriveConfig(AppConfig):
    """``"redrive.django"`` in INSTALLED_APPS."""

    name = "redrive.django"
    label = "redrive"
    verbose_name = "Background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Begin, once all apps are known."""
        checks.install()
        upkeep.install()
        autodiscover_modules(*options().autodiscover)
        if any(BACKEND in str(each.get("BACKEND")) for each in (getattr(settings, "TASKS", None) or {}).values()):
            autodiscover_modules("tasks")
