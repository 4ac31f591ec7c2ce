"""An order."""

from django.db import models


class Order(models.Model):
    """What somebody has bought."""

    email = models.EmailField()
    lines = models.PositiveIntegerField(default=1)
    confirmed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}"
