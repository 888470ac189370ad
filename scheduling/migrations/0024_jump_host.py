"""Host through which the portal reaches a node."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0023_device_aliases"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="jump_host",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
