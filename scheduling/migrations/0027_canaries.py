"""Canary jobs of devices that return from quarantine."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0026_cpu_jobs"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="canary",
            field=models.CharField(
                blank=True,
                choices=[
                    ("due", "waits for a canary job"),
                    ("failed", "its canary job failed"),
                ],
                db_default="",
                default="",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="clusterrules",
            name="canary",
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
        migrations.CreateModel(
            name="CanaryRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                ("requested_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "result",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("passed", "passed"),
                            ("failed", "failed"),
                            ("untested", "could not run"),
                        ],
                        max_length=16,
                    ),
                ),
                ("cause", models.CharField(blank=True, max_length=500)),
                ("figures", models.JSONField(blank=True, default=dict)),
                (
                    "device",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="canaries",
                        to="scheduling.device",
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="canary",
                        to="scheduling.job",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("device",),
                        name="canary_one_open_per_device",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at", None), ("result", "")),
                            models.Q(
                                ("ended_at__isnull", False),
                                ("result__in", ["passed", "failed", "untested"]),
                            ),
                            _connector="OR",
                        ),
                        name="canary_result_is_that_of_an_ended_run",
                    ),
                ],
            },
        ),
    ]
