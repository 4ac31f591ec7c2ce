"""``path("desk/", include("redrive.django.urls"))``: redrive's desk as pages of the project."""

from __future__ import annotations

from django.urls import re_path

from redrive.django.desk import page

app_name = "redrive_desk"
urlpatterns = [re_path(r"^(?P<below>.*)$", page, name="desk")]
