"""Jobs that share a device as equals, and how attempts were suspended."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0019_fleet_history"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="is_peer",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="attempt",
            name="suspended_by",
            field=models.CharField(
                blank=True,
                choices=[("T0", "gate"), ("T1", "frozen"), ("T2", "parked"), ("T5", "checkpoint")],
                default="",
                max_length=2,
            ),
        ),
        migrations.AddField(
            model_name="attempt",
            name="suspended_seconds",
            field=models.FloatField(default=0),
        ),
        migrations.AddField(
            model_name="attempt",
            name="suspensions",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="lease",
            name="is_peer",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="lease",
            name="turn_seconds",
            field=models.FloatField(default=0),
        ),
        migrations.AddConstraint(
            model_name="lease",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("is_peer", False), ("turn_seconds", 0)),
                    models.Q(("is_peer", True), ("kind", "guest"), ("turn_seconds__gte", 0)),
                    _connector="OR",
                ),
                name="lease_peer_is_a_guest",
            ),
        ),
    ]
