"""Link probes and measured links."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0020_shared_turns"),
    ]

    operations = [
        migrations.CreateModel(
            name='LinkProbe',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='link_probe', serialize=False, to='scheduling.job')),
                ('device_type', models.CharField(max_length=100)),
                ('requested_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='LinkMeasurement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('device_type', models.CharField(max_length=100)),
                ('link_class', models.CharField(max_length=64)),
                ('transport', models.CharField(max_length=8)),
                ('points', models.JSONField(default=list)),
                ('spread', models.FloatField()),
                ('pairs', models.PositiveIntegerField()),
                ('nodes', models.JSONField(default=list)),
                ('measured_at', models.DateTimeField()),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='link_measurements', to='scheduling.job')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('device_type', 'link_class'), name='link_measurement_one_per_class')],
            },
        ),
    ]
