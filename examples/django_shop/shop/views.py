"""The web side: what is enqueued is part of the transaction, and there only if that is."""

from datetime import timedelta

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from shop.jobs import confirm_order, export_invoice, remind
from shop.models import Order


@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Take an order."""
    order = Order.objects.create(email=request.GET["email"], lines=int(request.GET.get("lines", "1")))
    job = confirm_order.enqueue({"order": order.pk}, key=f"confirm:{order.pk}")
    export_invoice.enqueue({"order": order.pk})
    if "fail" in request.GET:
        raise ValueError("the order and its jobs are both taken back")
    return JsonResponse({"order": order.pk, "job": job.id})


async def remind_later(request: HttpRequest) -> HttpResponse:
    """Enqueue from an async view."""
    await remind.enqueue_async({"order": int(request.GET["order"])}, delay=timedelta(days=3))
    return HttpResponse("in three days\n")
