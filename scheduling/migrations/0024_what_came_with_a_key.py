"""Keeps what came with an idempotency key; jobs that are there are told by their names."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0023_waits_of_jobs_that_have_started'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='idempotency_digest',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
    ]
