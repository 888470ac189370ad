"""Sizes of the parameters of a training, for the placement of the policy tiresias."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0028_turns_now"),
    ]

    operations = [
        migrations.AddField(
            model_name="attemptprogress",
            name="largest_parameter",
            field=models.PositiveBigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="attemptprogress",
            name="parameter_bytes",
            field=models.PositiveBigIntegerField(null=True),
        ),
    ]
