"""Totals of the fleet by interval, and preemptions by time."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0018_idle_devices"),
    ]

    operations = [
        migrations.CreateModel(
            name="FleetInterval",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("span_seconds", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("samples", models.PositiveIntegerField(default=0)),
                ("nodes", models.JSONField(default=list)),
                ("virtual_clusters", models.JSONField(default=dict)),
                ("waits", models.JSONField(default=dict)),
                ("preemptions", models.JSONField(default=list)),
                ("free", models.JSONField(default=list)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("span_seconds", "at"), name="fleet_interval_once"
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="preemption",
            index=models.Index(fields=["asked_at"], name="preemption_by_time"),
        ),
    ]
