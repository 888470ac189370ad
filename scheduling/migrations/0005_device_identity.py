"""Identity and last reported facts of devices."""

from django.db import migrations, models


def forget_shared_uuids(apps, schema_editor):
    """Clear a UUID on all rows of a node but the first healthy one.

    Earlier versions kept devices by the driver's index, so the row of a missing device kept a UUID
    that its neighbour had taken over.
    """
    devices = apps.get_model("scheduling", "Device").objects
    seen = set()
    live = devices.filter(retired_at=None).exclude(uuid="").order_by("-healthy", "index")
    for pk, node, uuid in list(live.values_list("pk", "node_id", "uuid")):
        if (node, uuid) in seen:
            devices.filter(pk=pk).update(uuid="")
        seen.add((node, uuid))


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0004_promise_audit'),
    ]

    operations = [
        migrations.AddField(
            model_name='device',
            name='serial',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='device',
            name='pci_address',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='device',
            name='driver_index',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='device',
            name='model',
            field=models.CharField(blank=True, default='', max_length=128),
        ),
        migrations.RunPython(forget_shared_uuids, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name='device',
            constraint=models.UniqueConstraint(
                condition=models.Q(('retired_at', None), models.Q(('uuid', ''), _negated=True)),
                fields=('node', 'uuid'),
                name='device_one_per_uuid',
            ),
        ),
    ]
