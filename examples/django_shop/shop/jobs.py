"""The handlers: redrive imports ``jobs.py`` of every app when the project starts."""

from django.core.mail import send_mail
from django.db import transaction

from redrive import Dead
from redrive.django import queue
from shop.models import Order


@queue.handler("confirm_order", max_attempts=5, timeout=30)
def confirm_order(payload: dict[str, int]) -> None:
    """Mail the customer, and note that it was done."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=payload["order"])
        if order.confirmed:
            return
        order.confirmed = True
        order.save()
        send_mail("Your order", f"We have it: {order}.", "shop@example.com", [order.email])


@queue.handler("export_invoice", max_attempts=3)
def export_invoice(payload: dict[str, int]) -> dict[str, int]:
    """Stand for what takes its time; an order without lines can't be helped by another try."""
    order = Order.objects.get(pk=payload["order"])
    if not order.lines:
        raise Dead(f"{order} has no lines")
    return {"pages": order.lines}


@queue.handler("remind")
async def remind(payload: dict[str, int]) -> None:
    """Handlers may be async: they use the ORM's methods that begin with an a."""
    await Order.objects.aget(pk=payload["order"])
