"""Present suspensions of attempts, and pairs in the history of shared devices."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0027_canaries"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="suspended_since",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="sharedminute",
            name="duty",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="sharedminute",
            name="limit",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="sharedminute",
            name="peers",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="sharedminute",
            name="suspended",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
    ]
