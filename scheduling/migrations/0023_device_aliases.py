"""Aliases of device types."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0022_fragmentation_moves"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeviceAlias",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("alias", models.CharField(max_length=60)),
                ("device_type", models.CharField(max_length=100)),
                ("created_by_id", models.BigIntegerField(null=True)),
            ],
            options={"ordering": ["alias", "device_type"]},
        ),
        migrations.AddConstraint(
            model_name="devicealias",
            constraint=models.UniqueConstraint(
                fields=("alias", "device_type"), name="device_alias_one_per_type"
            ),
        ),
    ]
