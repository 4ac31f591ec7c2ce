"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first."""

    initial = True
    operations = [  # noqa: RUF012 - as Django writes them
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("email", models.EmailField(max_length=254)),
                ("lines", models.PositiveIntegerField(default=1)),
                ("confirmed", models.BooleanField(default=False)),
            ],
        )
    ]
