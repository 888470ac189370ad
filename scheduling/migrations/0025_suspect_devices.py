"""Devices on which unusually many jobs of several tenants failed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0024_jump_host"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="suspect_since",
            field=models.DateTimeField(null=True),
        ),
    ]
