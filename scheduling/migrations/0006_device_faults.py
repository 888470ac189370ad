"""Faults of devices apart from the marks of admins, and actions for conditions of GPUs."""

from django.db import migrations, models
from django.db.models import F

MISSING = "no longer found on the node"


def split_reasons(apps, schema_editor):
    unhealthy = apps.get_model("scheduling", "Device").objects.filter(healthy=False)
    unhealthy.filter(health_reason=MISSING).update(fault=F("health_reason"))
    unhealthy.exclude(health_reason=MISSING).update(disabled_reason=F("health_reason"))


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0005_device_identity'),
    ]

    operations = [
        migrations.AddField(
            model_name='device',
            name='disabled_reason',
            field=models.CharField(blank=True, default='', max_length=500),
        ),
        migrations.AddField(
            model_name='device',
            name='fault',
            field=models.CharField(blank=True, default='', max_length=500),
        ),
        migrations.AddField(
            model_name='clusterrules',
            name='condition_actions',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.RunPython(split_reasons, migrations.RunPython.noop),
    ]
