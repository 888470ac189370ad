"""Guests allowed by node and device, history of shared devices, and delays by guests."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0014_pair_paces"),
    ]

    operations = [
        migrations.CreateModel(
            name='GuestDelay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('is_gpu', models.BooleanField()),
                ('seconds', models.FloatField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='SharedMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('place', models.PositiveSmallIntegerField()),
                ('minute', models.DateTimeField()),
                ('guests', models.PositiveSmallIntegerField()),
                ('frozen', models.PositiveSmallIntegerField()),
                ('baseline', models.FloatField(null=True)),
                ('loss', models.FloatField(null=True)),
                ('loss_low', models.FloatField(null=True)),
                ('loss_high', models.FloatField(null=True)),
                ('open', models.FloatField(null=True)),
                ('delay_seconds', models.FloatField(default=0)),
                ('closings', models.PositiveIntegerField(default=0)),
            ],
        ),
        migrations.AddField(
            model_name='device',
            name='guests',
            field=models.CharField(default='any', max_length=16),
        ),
        migrations.AddField(
            model_name='node',
            name='guests',
            field=models.CharField(default='any', max_length=16),
        ),
        migrations.AddField(
            model_name='usageday',
            name='delay',
            field=models.FloatField(default=0.0),
        ),
        migrations.AddField(
            model_name='usagejob',
            name='delay',
            field=models.FloatField(default=0.0),
        ),
        migrations.AddConstraint(
            model_name='device',
            constraint=models.CheckConstraint(condition=models.Q(('guests__in', ['none', 'same-tenant', 'any'])), name='device_guests_are_known'),
        ),
        migrations.AddConstraint(
            model_name='node',
            constraint=models.CheckConstraint(condition=models.Q(('guests__in', ['none', 'same-tenant', 'any'])), name='node_guests_are_known'),
        ),
        migrations.AddField(
            model_name='guestdelay',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.job'),
        ),
        migrations.AddField(
            model_name='sharedminute',
            name='device',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.device'),
        ),
        migrations.AddField(
            model_name='sharedminute',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.job'),
        ),
        migrations.AddConstraint(
            model_name='guestdelay',
            constraint=models.UniqueConstraint(fields=('day', 'job', 'is_gpu'), name='guest_delay_one_per_day'),
        ),
        migrations.AddConstraint(
            model_name='guestdelay',
            constraint=models.CheckConstraint(condition=models.Q(('seconds__gte', 0)), name='guest_delay_counts_up'),
        ),
        migrations.AddIndex(
            model_name='sharedminute',
            index=models.Index(fields=['job', 'minute'], name='shared_minute_by_job'),
        ),
        migrations.AddIndex(
            model_name='sharedminute',
            index=models.Index(fields=['minute'], name='shared_minute_by_age'),
        ),
        migrations.AddConstraint(
            model_name='sharedminute',
            constraint=models.UniqueConstraint(fields=('device', 'place'), name='shared_minute_one_per_place'),
        ),
    ]
