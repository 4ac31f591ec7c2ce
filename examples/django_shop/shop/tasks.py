"""Django's own tasks, run by redrive: settings.TASKS names its backend."""

try:
    from django.tasks import task
except ModuleNotFoundError:  # before Django 6
    from django_tasks import task

from shop.models import Order


@task
def count_lines() -> int:
    """Count what was ordered."""
    return sum(Order.objects.values_list("lines", flat=True))
