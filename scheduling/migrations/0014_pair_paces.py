"""Measured paces of two applications that share a device."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0013_policy_advice"),
    ]

    operations = [
        migrations.CreateModel(
            name='PairPace',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('holder', models.CharField(max_length=200)),
                ('guest', models.CharField(max_length=200)),
                ('device_type', models.CharField(max_length=100)),
                ('holder_pace', models.FloatField()),
                ('guest_pace', models.FloatField()),
                ('observations', models.FloatField()),
                ('at', models.DateTimeField(db_index=True)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('holder', 'guest', 'device_type'), name='pair_pace_one_per_pair'), models.CheckConstraint(condition=models.Q(('guest_pace__range', (0.0, 1.0)), ('holder_pace__range', (0.0, 1.0))), name='pair_pace_is_a_fraction')],
            },
        ),
    ]
