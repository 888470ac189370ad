"""Jobs without devices: leases of CPUs and memory, their charge, and the share of devices."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0025_suspect_devices"),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='cpu_seconds',
            field=models.FloatField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='node',
            name='device_cpus',
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='device_memory_bytes',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='usageday',
            name='cpu',
            field=models.FloatField(db_default=0.0, default=0.0),
        ),
        migrations.AddField(
            model_name='usagejob',
            name='cpu',
            field=models.FloatField(db_default=0.0, default=0.0),
        ),
        migrations.CreateModel(
            name='CpuLease',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('cpus', models.FloatField()),
                ('memory_bytes', models.BigIntegerField()),
                ('taken_at', models.DateTimeField()),
                ('released_at', models.DateTimeField(null=True)),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='cpu_leases', to='scheduling.attempt')),
                ('job', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='cpu_leases', to='scheduling.job')),
                ('member', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='cpu_lease', to='scheduling.member')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='cpu_leases', to='scheduling.node')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('released_at', None)), fields=['job'], name='cpu_lease_live_by_job'), models.Index(fields=['released_at'], name='cpu_lease_by_end')],
                'constraints': [models.CheckConstraint(condition=models.Q(('cpus__gt', 0), ('memory_bytes__gt', 0)), name='cpu_lease_is_positive')],
            },
        ),
    ]
