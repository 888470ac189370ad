"""Alarms about disks that are almost full."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0036_last_address_of_removed_nodes'),
        ('workers', '0003_clocks_disks_and_duties'),
    ]

    operations = [
        migrations.CreateModel(
            name='DiskAlarm',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(blank=True, max_length=255)),
                ('since', models.DateTimeField()),
                ('node', models.OneToOneField(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='disk_alarm', to='scheduling.node')),
            ],
            options={
                'constraints': [models.UniqueConstraint(condition=models.Q(('node', None)), fields=('host',), name='diskalarm_one_per_host'), models.CheckConstraint(condition=models.Q(models.Q(('node', None), models.Q(('host', ''), _negated=True)), models.Q(('host', ''), ('node__isnull', False)), _connector='OR'), name='diskalarm_of_a_node_or_a_host')],
            },
        ),
    ]
