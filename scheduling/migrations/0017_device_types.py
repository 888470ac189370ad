"""Memory of the GPUs of nodes with several device types."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0016_sweep_objectives"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="type_memory",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
