"""All tables of the hands at once, as 0001 and 0002 leave them in an empty database."""

import django.db.models.deletion
from django.db import migrations, models

from tenants.creating import CreateModels


class Migration(migrations.Migration):

    replaces = [
        ('workers', '0001_initial'),
        ('workers', '0002_samples_know_their_batch'),
    ]

    initial = True

    dependencies = [
        ('scheduling', '0001_squashed_0027_lines_of_waiting_jobs'),
    ]

    operations = [
        CreateModels([
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
                ],
            ),
            migrations.CreateModel(
                name='LogStream',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('path', models.CharField(max_length=200)),
                    ('first', models.PositiveBigIntegerField(default=0)),
                    ('end', models.PositiveBigIntegerField(default=0)),
                    ('reports_end', models.PositiveBigIntegerField(default=0)),
                    ('closed', models.BooleanField(default=False)),
                    ('pruned_at', models.DateTimeField(null=True)),
                    ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='logs', to='scheduling.job')),
                    ('member', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='log', to='scheduling.member')),
                ],
            ),
            migrations.CreateModel(
                name='NodeLease',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('owner', models.CharField(blank=True, max_length=100)),
                    ('epoch', models.PositiveBigIntegerField(default=0)),
                    ('expires_at', models.DateTimeField()),
                    ('node', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='carrier', to='scheduling.node')),
                ],
            ),
            migrations.CreateModel(
                name='GoodputSample',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('at', models.DateTimeField()),
                    ('seconds', models.FloatField()),
                    ('step', models.BigIntegerField()),
                    ('steps', models.PositiveIntegerField()),
                    ('samples', models.FloatField()),
                    ('step_seconds', models.FloatField(null=True)),
                    ('loss', models.FloatField(null=True)),
                    ('throughput', models.FloatField()),
                    ('efficiency', models.FloatField(default=1.0)),
                    ('goodput', models.FloatField()),
                    ('devices', models.PositiveIntegerField()),
                    ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='goodput', to='scheduling.attempt')),
                    ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='goodput', to='scheduling.job')),
                    ('batch', models.PositiveBigIntegerField(null=True)),
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
                    ('at', models.DateTimeField()),
                    ('span_seconds', models.PositiveIntegerField(default=60)),
                    ('samples', models.PositiveIntegerField(default=1)),
                    ('utilisation', models.JSONField(default=list)),
                    ('memory_bytes', models.JSONField(default=list)),
                    ('temperature', models.JSONField(default=list)),
                    ('cpu_load', models.FloatField(null=True)),
                    ('memory_used_bytes', models.BigIntegerField(null=True)),
                    ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='telemetry', to='scheduling.node')),
                ],
                options={
                    'indexes': [models.Index(fields=['span_seconds', 'at'], name='node_telemetry_by_time')],
                    'constraints': [models.UniqueConstraint(fields=('node', 'span_seconds', 'at'), name='node_telemetry_one_per_span')],
                },
            ),
        ]),
    ]
