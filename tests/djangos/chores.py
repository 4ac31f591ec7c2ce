"""Tasks of Django's."""

from __future__ import annotations

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task
from shop.models import Order

seen = []


@task
def noop(*args, **kwargs):
    seen.append((args, kwargs))


@task
async def noop_async(*args, **kwargs):
    seen.append((args, kwargs))
    await Order.objects.acount()


@task(takes_context=True)
def context(context, add):
    return [context.task_result.id, context.attempt + add]


@task(takes_context=True)
async def context_async(context):
    return context.attempt


@task
def failing():
    raise ValueError("This one fails")


@task
def unstorable():
    return lambda: True


@task
def leaving():
    raise SystemExit("out")
