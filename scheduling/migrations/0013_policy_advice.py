"""Advice on policies: replays of past days under every policy, as a kind of what-if."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0012_fragmentation_forecast"),
    ]

    operations = [
        migrations.AddField(
            model_name='whatif',
            name='kind',
            field=models.CharField(choices=[('what-if', 'what-if'), ('advice', 'advice')], default='what-if', max_length=10),
        ),
        migrations.AddField(
            model_name='whatif',
            name='nodes',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='whatif',
            name='steps',
            field=models.PositiveSmallIntegerField(default=3),
        ),
        migrations.AddConstraint(
            model_name='whatif',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['what-if', 'advice'])), name='what_if_kind_known'),
        ),
    ]
