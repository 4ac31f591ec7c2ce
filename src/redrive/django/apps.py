"""The app: it registers the checks, looks after connections in workers, and imports the modules that have handlers."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from redrive.django import checks, upkeep
from redrive.django.options import options


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
