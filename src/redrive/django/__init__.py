"""redrive at home in a Django project: put ``"redrive.django"`` into INSTALLED_APPS.

``from redrive.django import queue`` is the project's queue: its tables are in one of the project's DATABASES, and what
it enqueues is in the ORM's transaction. It needs the extra: ``pip install 'redrive[django]'``. Nothing of Django is
imported before something here is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.django.ormqueue import DjangoQueue

    queue: DjangoQueue

__all__ = ["DjangoQueue", "queue"]


def __getattr__(name: str) -> Any:
    """Make the project's queue when it is first asked for: INSTALLED_APPS names this package before settings are."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from redrive.django.ormqueue import DjangoQueue, project_queue  # noqa: PLC0415 - Django is optional
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("django", "asgiref"):
            raise ModuleNotFoundError(
                f"{error.name} is not installed: pip install 'redrive[django]'", name=error.name
            ) from error
        raise
    return DjangoQueue if name == "DjangoQueue" else project_queue()
