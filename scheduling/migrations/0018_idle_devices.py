"""Idle policies for any device of a job, and the idle devices of jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0017_device_types"),
    ]

    operations = [
        migrations.AddField(
            model_name="idlerule",
            name="devices",
            field=models.CharField(
                choices=[
                    ("all", "all devices of the job"),
                    ("any", "any device of the job"),
                ],
                default="all",
                max_length=3,
            ),
        ),
        migrations.AddField(
            model_name="idlespell",
            name="devices",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="idlespell",
            name="idle_devices",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddConstraint(
            model_name="idlerule",
            constraint=models.CheckConstraint(
                condition=models.Q(("devices__in", ["all", "any"])),
                name="idle_rule_devices_are_known",
            ),
        ),
    ]
