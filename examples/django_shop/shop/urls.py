"""Addresses: the shop, the admin, in which redrive's jobs are, and redrive's own desk for the same people."""

from django.contrib import admin
from django.urls import include, path

from shop import views

urlpatterns = [
    path("orders/place", views.place),
    path("orders/remind", views.remind_later),
    path("admin/", admin.site.urls),
    path("desk/", include("redrive.django.urls")),
]
