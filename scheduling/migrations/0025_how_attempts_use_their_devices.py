import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0024_what_came_with_a_key")]

    operations = [
        migrations.CreateModel(
            name="AttemptUse",
            fields=[
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="use",
                        serialize=False,
                        to="scheduling.attempt",
                    ),
                ),
                ("until", models.DateTimeField()),
                ("minutes", models.PositiveIntegerField(default=0)),
                ("busy", models.FloatField(null=True)),
                ("memory_peak", models.BigIntegerField(null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("busy", None),
                            models.Q(("busy__gte", 0), ("busy__lte", 1)),
                            _connector="OR",
                        ),
                        name="attempt_use_busy_is_a_share",
                    )
                ],
            },
        ),
    ]
