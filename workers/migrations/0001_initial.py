"""All tables of node services and telemetry, generated from the models."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('scheduling', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='NodeLease',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='carrier', to='scheduling.node')),
                ('owner', models.CharField(blank=True, max_length=100)),
                ('epoch', models.PositiveBigIntegerField(default=0)),
                ('expires_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='NodeBackoff',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='backoffs', to='scheduling.node')),
                ('process', models.CharField(max_length=100)),
                ('until', models.DateTimeField()),
                ('silent_since', models.DateTimeField(null=True)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('node', 'process'), name='nodebackoff_one_per_service')],
            },
        ),
        migrations.CreateModel(
            name='Heartbeat',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('process', models.CharField(max_length=100, unique=True)),
                ('kind', models.CharField(max_length=20)),
                ('pid', models.PositiveIntegerField()),
                ('host', models.CharField(max_length=255)),
                ('started_at', models.DateTimeField()),
                ('at', models.DateTimeField()),
                ('skew_seconds', models.FloatField(null=True)),
                ('disk_free_bytes', models.BigIntegerField(null=True)),
                ('disk_total_bytes', models.BigIntegerField(null=True)),
                ('refusal', models.CharField(blank=True, default='', max_length=40)),
            ],
        ),
        migrations.CreateModel(
            name='DiskAlarm',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node', models.OneToOneField(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='disk_alarm', to='scheduling.node')),
                ('host', models.CharField(blank=True, max_length=255)),
                ('since', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(condition=models.Q(('node', None)), fields=('host',), name='diskalarm_one_per_host'), models.CheckConstraint(condition=models.Q(models.Q(('node', None), models.Q(('host', ''), _negated=True)), models.Q(('host', ''), ('node__isnull', False)), _connector='OR'), name='diskalarm_of_a_node_or_a_host')],
            },
        ),
        migrations.CreateModel(
            name='DutyLease',
            fields=[
                ('name', models.CharField(max_length=40, primary_key=True, serialize=False)),
                ('owner', models.CharField(blank=True, max_length=100)),
                ('expires_at', models.DateTimeField()),
                ('state', models.JSONField(default=dict)),
            ],
        ),
        migrations.CreateModel(
            name='LogStream',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('member', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='log', to='scheduling.member')),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='logs', to='scheduling.job')),
                ('path', models.CharField(max_length=200)),
                ('host', models.CharField(blank=True, default='', max_length=255)),
                ('first', models.PositiveBigIntegerField(default=0)),
                ('end', models.PositiveBigIntegerField(default=0)),
                ('reports_end', models.PositiveBigIntegerField(default=0)),
                ('closed', models.BooleanField(default=False)),
                ('pruned_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='GoodputSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='goodput', to='scheduling.attempt')),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='goodput', to='scheduling.job')),
                ('at', models.DateTimeField()),
                ('seconds', models.FloatField()),
                ('step', models.BigIntegerField()),
                ('steps', models.PositiveIntegerField()),
                ('samples', models.FloatField()),
                ('step_seconds', models.FloatField(null=True)),
                ('loss', models.FloatField(null=True)),
                ('throughput', models.FloatField()),
                ('efficiency', models.FloatField(default=1.0)),
                ('batch', models.PositiveBigIntegerField(null=True)),
                ('goodput', models.FloatField()),
                ('devices', models.PositiveIntegerField()),
            ],
            options={
                'indexes': [models.Index(fields=['job', 'at'], name='goodput_by_job')],
                'constraints': [models.UniqueConstraint(fields=('attempt', 'at'), name='goodput_sample_one_per_instant'), models.CheckConstraint(condition=models.Q(('efficiency__gt', 0), ('efficiency__lte', 1)), name='goodput_efficiency_is_a_share')],
            },
        ),
        migrations.CreateModel(
            name='NodeTelemetry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='telemetry', to='scheduling.node')),
                ('at', models.DateTimeField()),
                ('span_seconds', models.PositiveIntegerField(default=60)),
                ('samples', models.PositiveIntegerField(default=1)),
                ('utilisation', models.JSONField(default=list)),
                ('memory_bytes', models.JSONField(default=list)),
                ('temperature', models.JSONField(default=list)),
                ('cpu_load', models.FloatField(null=True)),
                ('memory_used_bytes', models.BigIntegerField(null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['span_seconds', 'at'], name='node_telemetry_by_time')],
                'constraints': [models.UniqueConstraint(fields=('node', 'span_seconds', 'at'), name='node_telemetry_one_per_span')],
            },
        ),
    ]
