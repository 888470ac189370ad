"""Identity and last reported facts of devices."""

from django.db import migrations, models


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
        migrations.AddConstraint(
            model_name='device',
            constraint=models.UniqueConstraint(
                condition=models.Q(('retired_at', None), models.Q(('uuid', ''), _negated=True)),
                fields=('node', 'uuid'),
                name='device_one_per_uuid',
            ),
        ),
    ]
