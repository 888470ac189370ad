"""Forecast of stranded devices, and proposals to move jobs."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0011_gpu_facts_and_registry_logins'),
    ]

    operations = [
        migrations.AddField(
            model_name='clusterrules',
            name='moves',
            field=models.BooleanField(default=False),
        ),
        migrations.CreateModel(
            name='FragmentationForecast',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('round_number', models.PositiveBigIntegerField()),
                ('made_at', models.DateTimeField()),
                ('result', models.JSONField(default=dict)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='fragmentation_forecast_is_one_row')],
            },
        ),
        migrations.CreateModel(
            name='MoveProposal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('round_number', models.PositiveBigIntegerField()),
                ('made_at', models.DateTimeField()),
                ('state', models.CharField(choices=[('proposed', 'Proposed'), ('carried-out', 'Carried Out'), ('outdated', 'Outdated')], db_index=True, default='proposed', max_length=12)),
                ('acted_at', models.DateTimeField(null=True)),
                ('by', models.CharField(blank=True, default='', max_length=200)),
                ('result', models.JSONField(default=dict)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='move_proposals', to='scheduling.job')),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['proposed', 'carried-out', 'outdated'])), name='move_proposal_state_is_known'), models.UniqueConstraint(condition=models.Q(('state', 'proposed')), fields=('job',), name='move_proposal_one_open_per_job')],
            },
        ),
    ]
